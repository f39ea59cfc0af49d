//go:build system

package resolvers

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// resolverAt is where dnsmasq, unbound and CoreDNS listen.
const resolverAt = "127.0.0.1:53"

// resolvers start a resolver on a host, with the recipe of docs/dns.md. Each has what makes foreign
// servers fail: filters of private addresses and, in unbound, strict minimization of query names,
// random case of letters, and validation.
var resolvers = map[string]func(h *host){
	"dnsmasq": func(h *host) {
		conf := write(h.t, filepath.Join(h.dir, "dnsmasq.conf"), "no-resolv\nno-hosts\nlisten-address=127.0.0.1\nbind-interfaces\nuser=root\npid-file=\nstop-dns-rebind\nbogus-priv\n"+recipe(h.t, "dnsmasq"))
		run(h.t, h.Node, "dnsmasq", filepath.Join(h.dir, "dnsmasq.log"), need.Daemon(h.t, "dnsmasq"), "--keep-in-foreground", "--log-facility=-", "--conf-file="+conf)
	},
	"unbound": func(h *host) {
		added := write(h.t, filepath.Join(h.dir, "recipe.conf"), recipe(h.t, "unbound"))
		conf := write(h.t, filepath.Join(h.dir, "unbound.conf"), fmt.Sprintf(`server:
    interface: 127.0.0.1
    chroot: ""
    username: ""
    directory: %q
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    trust-anchor: ". DS 20326 8 2 E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D"
    qname-minimisation: yes
    qname-minimisation-strict: yes
    use-caps-for-id: yes
    private-address: 10.0.0.0/8
    private-address: fd00::/8
include: %q
`, h.dir, added))
		run(h.t, h.Node, "unbound", filepath.Join(h.dir, "unbound.log"), need.Daemon(h.t, "unbound"), "-d", "-c", conf)
	},
	"coredns": func(h *host) {
		conf := write(h.t, filepath.Join(h.dir, "Corefile"), recipe(h.t, "coredns"))
		run(h.t, h.Node, "coredns", filepath.Join(h.dir, "coredns.log"), need.Server(h.t, "coredns"), "-conf", conf)
	},
}

func TestRecipes(t *testing.T) {
	t.Parallel()
	for name, start := range resolvers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.configure("")
			h.service("web", "prod", 1)
			h.service("shop", "default", 2)
			h.start(need.Binary(t), "web.prod.svc."+zone)
			start(h)
			h.await(resolverAt, "web.prod.svc."+zone, dns.TypeA)
			lookups(t, h, resolverAt)
			visible(t, h, resolverAt)
		})
	}
}

// lookups checks what every resolver must find, with its filters.
func lookups(t *testing.T, h *host, server string) {
	t.Helper()
	for _, c := range []struct {
		name string
		kind uint16
		want string // of the answer's records; "": none
		code int
	}{
		{"web.prod.svc.vip.internal", dns.TypeA, "10.96.0.1", dns.RcodeSuccess},
		{"web.prod.svc.vip.internal", dns.TypeAAAA, "fd96::1", dns.RcodeSuccess},
		{"WEB.Prod.sVC.vip.InTernal", dns.TypeA, "10.96.0.1", dns.RcodeSuccess},
		{"shop.vip.internal", dns.TypeA, "10.96.0.2", dns.RcodeSuccess},
		{"_http._tcp.web.prod.svc.vip.internal", dns.TypeSRV, "80 web.prod.svc.vip.internal.", dns.RcodeSuccess},
		{reverse(t, netip.MustParseAddr("10.96.0.1")), dns.TypePTR, "web.prod.svc.vip.internal.", dns.RcodeSuccess},
		{reverse(t, netip.MustParseAddr("fd96::2")), dns.TypePTR, "shop.default.svc.vip.internal.", dns.RcodeSuccess},
		{"web.prod.svc.vip.internal", dns.TypeMX, "", dns.RcodeSuccess},
		{"prod.svc.vip.internal", dns.TypeA, "", dns.RcodeSuccess},
		{"none.prod.svc.vip.internal", dns.TypeA, "", dns.RcodeNameError},
		{reverse(t, netip.MustParseAddr("10.96.0.9")), dns.TypePTR, "", dns.RcodeNameError},
	} {
		var last string
		wait.Until(t, fmt.Sprintf("%s %s", c.name, dns.TypeToString[c.kind]), func() bool { // a lost datagram on a busy machine
			r, err := h.ask(server, c.name, c.kind)
			if err != nil {
				last = err.Error()
				return false
			}
			last = r.String()
			got := data(r)
			return r.Rcode == c.code && (c.want == "" && len(got) == 0 || len(got) == 1 && c.want != "" && strings.HasSuffix(got[0], c.want)) &&
				strings.EqualFold(r.Question[0].Name, dns.Fqdn(c.name))
		}, func() any { return last })
	}
}

// visibleWithin is how long a resolver may remember that a name did not exist: the SOA's minimum is
// 1 s, and resolvers count in whole seconds.
const visibleWithin = 2 * time.Second

// visible checks that a name is found soon after its creation, although the resolver has cached that
// it does not exist. Nothing is asked between the creation and the first answer of the agent, so the
// time counts from then, however slow this machine is.
func visible(t *testing.T, h *host, server string) {
	t.Helper()
	const name = "new.prod.svc." + zone
	wait.For(t, name+" does not exist", func() error {
		r, err := h.ask(server, name, dns.TypeA)
		if err == nil && r.Rcode != dns.RcodeNameError {
			err = fmt.Errorf("the answer is %v", r)
		}
		return err
	})
	h.service("new", "prod", 3)
	h.await(serving, name, dns.TypeA)
	created := time.Now()
	wait.For(t, name+" exists", func() error {
		asked := time.Now()
		r, err := h.ask(server, name, dns.TypeA)
		switch {
		case err != nil:
			return err
		case slices.Equal(data(r), []string{"10.96.0.3"}):
			return nil
		case asked.Sub(created) > visibleWithin:
			t.Fatalf("%v after the creation, the answer was %v", asked.Sub(created), r)
		}
		return fmt.Errorf("the answer is %v", r)
	})
}
