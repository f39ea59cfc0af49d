// Package kubevip converts kube-vip: the environment variables of its static pod or DaemonSet, and the ConfigMap of its cloud
// provider. The address of the control plane becomes a service for programs of the hosts, with a check of the apiserver; Services
// need no conversion, because the source kubernetes reads them and their annotations.
package kubevip

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// converter collects the settings of all containers.
type converter struct {
	migrate.Result
	listeners []migrate.Listener
}

// Convert reads YAML documents. name is their name in notes. Only what is kube-vip's own is read of a pod.
func Convert(name, text string) migrate.Result {
	var c converter
	of := c.Objects(name, text, "Pod", "DaemonSet", "ConfigMap", "Service")
	for _, o := range of["ConfigMap"] {
		c.pools(o)
	}
	for _, o := range of["Service"] {
		annotations := o.Object("metadata").Object("annotations")
		for _, key := range annotations.Keys() {
			if strings.HasPrefix(key, "kube-vip.io/") && key != "kube-vip.io/loadbalancerIPs" {
				c.Note(annotations.At(key), "%s is not converted: the source kubernetes does not read it", key)
			}
		}
	}
	for _, o := range of["Pod"] {
		c.pod(o.Object("spec"))
	}
	for _, o := range of["DaemonSet"] {
		c.pod(o.Object("spec").Object("template").Object("spec"))
	}
	c.Add(c.listeners)
	c.SortNotes()
	return c.Result
}

// pools converts the ranges of the cloud provider: "cidr-global", "range-shop".
func (c *converter) pools(o *migrate.Object) {
	if name := c.NameOf(o); name != "kubevip" {
		c.Note(o.Place, "the ConfigMap %q is not converted: the one of the cloud provider is kubevip", name)
		return
	}
	data := o.Object("data")
	for _, key := range data.Keys() {
		kind, namespace, ok := strings.Cut(key, "-")
		if kind != "cidr" && kind != "range" || !ok {
			continue // see NoteUnreadOf
		}
		p := migrate.Pool{Name: key}
		for text := range strings.SplitSeq(c.Text(data, key), ",") {
			if text = strings.TrimSpace(text); text == "0.0.0.0/32" {
				c.Note(data.At(key), "0.0.0.0/32 means addresses by DHCP: not converted")
				continue
			}
			p.CIDRs = append(p.CIDRs, c.Masked(data.At(key), text))
		}
		if namespace != "global" {
			p.Namespaces = []string{namespace}
		}
		c.Pools = append(c.Pools, p)
	}
	c.NoteUnreadOf(o)
}

// pod converts the containers that have variables of kube-vip.
func (c *converter) pod(o *migrate.Object) {
	for _, container := range o.Items("containers") {
		args, at, _ := migrate.Value[[]string](&c.Result, container, "args")
		if words := migrate.NewStatement(at, append([]string{"args"}, args...)); len(args) > 0 {
			words.Keyword()
			words.Has("manager")
			c.NoteUnread(&words)
		}
		if container.Has("envFrom") {
			c.Note(container.At("envFrom"), "variables of envFrom are not read: write them to env")
		}
		e := env{}
		var all []*migrate.Statement
		for _, v := range container.Items("env") {
			l := migrate.NewStatement(v.Place, []string{c.Text(v, "name"), c.Text(v, "value")})
			if v.Has("valueFrom") && !silent[l.Words[0]] {
				c.Note(l.Place, "%s is taken from elsewhere: it is not read", l.Words[0])
				l.Read()
			}
			e[l.Words[0]] = &l
			all = append(all, &l)
		}
		c.settings(e, container.Place)
		for _, l := range all {
			if silent[l.Words[0]] {
				l.Read()
			} else if why := elsewhere[l.Words[0]]; why != "" {
				if l.Keyword(); !strings.EqualFold(l.Arg(0), "false") {
					c.Note(l.Place, "%s is not converted: %s", l.Words[0], why)
				}
			}
			if !l.IsRead() { // without the value, which may be a password
				c.Note(l.Place, "%s is not converted", l.Words[0])
			}
		}
	}
}

// silent are the variables of which nothing is missing.
var silent = map[string]bool{
	"cp_namespace": true, "svc_election": true, "svc_leasename": true, "vip_leaderelection": true, "vip_leaseduration": true, "vip_leasename": true,
	"vip_loglevel": true, "vip_nodename": true, "vip_renewdeadline": true, "vip_retryperiod": true, "vip_subnet": true, "vip_cidr": true, "bgp_routerid": true,
	"dns_mode": true, "bgp_routerinterface": true, "enable_endpointslices": true, "vip_preserve_on_leadership_loss": true,
}

// elsewhere names what ironvip has instead of a variable.
var elsewhere = map[string]string{
	"vip_ddns":             "write the address",
	"lb_class_name":        "use load_balancer_class of the source kubernetes",
	"lb_class_only":        "use load_balancer_class of the source kubernetes",
	"prometheus_server":    "the agent has /metrics at its API",
	"enable_node_labeling": `"ironvip announce list" has the hosts of VIPs`,
	"lb_port":              noBalancing,
	"lb_fwdmethod":         noBalancing,
}

const noBalancing = "add a service with the apiservers as backends"

// env has the variables of a container by name.
type env map[string]*migrate.Statement

// get returns the value of a variable, "" without one.
func (e env) get(names ...string) string {
	for _, name := range names {
		if l := e[name]; l != nil {
			l.Keyword()
			return l.Arg(0)
		}
	}
	return ""
}

// is reports whether a variable is true.
func (c *converter) is(e env, name string) bool {
	text := e.get(name)
	return text != "" && c.isTrue(e[name].Place, name, text)
}

// isTrue reads a text as kube-vip does.
func (c *converter) isTrue(at migrate.Place, name, text string) bool {
	is, err := strconv.ParseBool(text)
	if err != nil {
		c.Note(at, "%s %q is neither true nor false: false is used", name, text)
	}
	return is
}

func (c *converter) settings(e env, at migrate.Place) {
	controlPlane, services := c.is(e, "cp_enable"), c.is(e, "svc_enable")
	if !controlPlane && !services {
		c.Note(at, "a container with neither cp_enable nor svc_enable is not converted")
		for _, l := range e {
			l.Read()
		}
		return
	}
	if c.Announce == nil {
		c.Announce = &migrate.Announce{}
	}
	layer2 := c.is(e, "vip_arp")
	if layer2 {
		c.Announce.Mode = cmp.Or(c.Announce.Mode, announce.L2.String())
	}
	if c.is(e, "bgp_enable") {
		if c.Announce.Mode == announce.L2.String() {
			c.Note(e["bgp_enable"].Place, "vip_arp is true, too, and the hosts have one mode: bgp is used. Write announce to a pool of its own for the others")
		}
		c.Announce.Mode = announce.BGP.String()
		c.routers(e)
	}
	for _, name := range []string{"vip_interface", "vip_servicesinterface"} {
		c.Announce.AddInterface(e.get(name))
	}
	if services && len(c.Pools) == 0 {
		c.Note(e["svc_enable"].Place, "svc_enable: add the source kubernetes, and a pool with the addresses of the Services")
	} else if services {
		c.Note(e["svc_enable"].Place, "svc_enable: add the source kubernetes")
	}
	if c.is(e, "lb_enable") {
		c.Note(e["lb_enable"].Place, "lb_enable is not converted: %s", noBalancing)
	}
	if controlPlane {
		c.controlPlane(e)
	}
}

// controlPlane makes a service of the address of the control plane.
func (c *converter) controlPlane(e env) {
	port := spec.PortRange{First: 6443} // kube-vip's default
	if text := e.get("port"); text != "" {
		n, ok := c.Number(e["port"].Place, "port", text, 1, 65535, "6443 is used")
		if ok {
			port.First = n
		}
	}
	text := e.get("address", "vip_address")
	if text == "" {
		c.Note(e["cp_enable"].Place, "the control plane has no address: not converted")
		return
	}
	for text := range strings.SplitSeq(text, ",") {
		l := cmp.Or(e["address"], e["vip_address"])
		addr, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			c.Note(l.Place, "%q is not an address: write it", text)
			continue
		}
		c.listeners = append(c.listeners, migrate.Listener{Place: l.Place, Name: "control-plane", Addr: addr, Ports: []spec.Port{{Port: port}},
			Service: spec.Service{Forward: vip.ForwardHost.String(), Health: &spec.HealthCheck{Type: vip.CheckHTTPS.String(), Path: "/readyz", SkipVerify: true}}})
	}
}

// routers converts the peers: bgp_peeraddress with its settings, and bgp_peers, which are "ADDRESS:AS:PASSWORD:MULTIHOP/OPTIONS" with
// brackets around an address of IPv6.
func (c *converter) routers(e env) {
	standard := migrate.Router{Source: e.get("bgp_sourceip")}
	standard.LocalASN = c.number(e["bgp_as"], e.get("bgp_as"), 65000) // kube-vip's default
	add := func(at *migrate.Statement, address, as, password, multihop string) {
		r := standard
		r.Peer, r.ASN = address, c.number(at, as, 0)
		if password != "" {
			r.PasswordFile = c.PasswordFile(password)
			c.Note(at.Place, "write the password of %s to the file %s beside ironvip.toml", address, r.PasswordFile)
		}
		if multihop != "" && c.isTrue(at.Place, "the multihop of "+address, multihop) {
			r.Multihop = 255
		}
		c.Announce.Routers = append(c.Announce.Routers, r)
	}
	if address := e.get("bgp_peeraddress"); address != "" {
		add(e["bgp_peeraddress"], address, cmp.Or(e.get("bgp_peeras"), "65000"), e.get("bgp_peerpass"), e.get("bgp_multihop"))
	}
	for text := range strings.SplitSeq(e.get("bgp_peers"), ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		text, options, _ := strings.Cut(text, "/")
		address, rest, ok := strings.Cut(text, ":")
		if strings.HasPrefix(text, "[") {
			address, rest, ok = strings.Cut(text[1:], "]:")
		}
		if _, err := netip.ParseAddr(address); err != nil || !ok {
			c.Note(e["bgp_peers"].Place, "a peer is not ADDRESS:AS:PASSWORD:MULTIHOP: not converted") // without its text, which may have a password
			continue
		}
		f := append(strings.Split(rest, ":"), "", "")
		if options != "" || len(f) > 5 {
			c.Note(e["bgp_peers"].Place, "the options of the peer %s are not converted", address)
		}
		add(e["bgp_peers"], address, f[0], f[1], f[2])
	}
}

// number reads the number of an AS.
func (c *converter) number(at *migrate.Statement, text string, standard int) int {
	if text != "" {
		if n, ok := c.Number(at.Place, at.Words[0], text, 1, 1<<32-1, "not converted"); ok {
			return n
		}
	}
	return standard
}
