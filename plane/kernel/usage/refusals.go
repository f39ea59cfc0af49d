package usage

import (
	"fmt"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// Refusals are the features of a frontend that a dataplane doesn't support.
type Refusals struct {
	Dataplane string // "the ipvs dataplane"
	all       []vip.Problem
}

// Add adds a feature, with the field that asks for it.
func (r *Refusals) Add(field, feature string, args ...any) {
	r.all = append(r.all, vip.Unsupported(r.Dataplane, field, fmt.Sprintf(feature, args...)))
}

// Hint sets the hint of the last refusal.
func (r *Refusals) Hint(text string) { r.all[len(r.all)-1].Hint = text }

// Err returns one vip.Problem for all, or nil.
func (r *Refusals) Err() error {
	if len(r.all) == 0 {
		return nil
	}
	for _, p := range r.all[1:] {
		r.all[0].Message += "; " + strings.TrimPrefix(p.Message, r.Dataplane+" ")
	}
	return r.all[0]
}

// ProxyProtocol refuses the headers of the PROXY protocol, which only a proxy can write and read.
func (r *Refusals) ProxyProtocol(f *vip.Frontend) {
	if f.Key.Protocol != vip.TCP {
		return
	}
	relay := f.Relay.Get()
	if v := relay.ProxyProtocol; v != 0 {
		r.Add("proxy_protocol", "proxy_protocol %q: it forwards packets", v)
		r.Hint(`remove it, or use dataplane.mode "proxy"`)
	}
	if len(relay.AcceptProxyFrom) > 0 {
		r.Add("accept_proxy_from", "accept_proxy_from: it forwards packets and reads none of their content")
		r.Hint(`remove it, or use dataplane.mode "proxy"`)
	}
}

// Proxied reports whether f asks for headers of the PROXY protocol.
func Proxied(f *vip.Frontend) bool {
	r := f.Relay.Get()
	return f.Key.Protocol == vip.TCP && (r.ProxyProtocol != 0 || len(r.AcceptProxyFrom) > 0)
}
