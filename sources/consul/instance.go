package consul

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// instance is one instance of a service, with the parts of /v1/health/service that the source uses.
type instance struct {
	Node struct {
		Node            string
		Address         string
		TaggedAddresses map[string]string
		Meta            map[string]string
		Locality        *locality
	}
	Service struct {
		ID              string
		Kind            string
		Tags            []string
		Address         string
		Port            int
		Ports           []servicePort
		TaggedAddresses map[string]serviceAddress
		Meta            map[string]string
		Weights         struct{ Passing, Warning int }
		Namespace       string
		Locality        *locality
	}
	Checks []check
}

type servicePort struct {
	Name    string
	Port    int
	Default bool
}

type serviceAddress struct {
	Address string
	Port    int
}

type locality struct{ Region, Zone string }

// check is a health check. Critical is the name of a critical check and the first line of its
// output. Other checks have no text, because every instance is kept in memory.
type check struct{ CheckID, Status, Critical string }

// maxOutput is the maximum length of a check's output in bytes. The rest is cut off.
const maxOutput = 120

func (c *check) UnmarshalJSON(data []byte) error {
	var in struct{ CheckID, Name, Status, Output string }
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*c = check{CheckID: in.CheckID, Status: in.Status}
	if !c.isCritical() {
		return nil
	}
	c.Critical = cmp.Or(in.Name, in.CheckID)
	if line, _, _ := strings.Cut(strings.TrimSpace(in.Output), "\n"); line != "" {
		if len(line) > maxOutput {
			line = strings.ToValidUTF8(line[:maxOutput], "") + "..."
		}
		c.Critical += ": " + line
	}
	return nil
}

// isCritical reports whether the check takes the instance out of use. An unknown status counts as
// critical.
func (c *check) isCritical() bool { return c.Status != "passing" && c.Status != "warning" }

// port is one port of an instance. Its name is "" if the instance has only one port.
type port struct {
	name   string
	number int
}

// id returns a name for messages that is unique within the service.
func (i *instance) id() string { return cmp.Or(i.Node.Node, `""`) + "/" + cmp.Or(i.Service.ID, `""`) }

// mesh reports whether the instance is a proxy or a gateway of Consul's service mesh. The source
// ignores those, because their listeners require the mesh's TLS.
func (i *instance) mesh() bool { return i.Service.Kind != "" }

// Consul sets maintenance mode by checks with these names.
const (
	nodeMaintenance    = "_node_maintenance"
	serviceMaintenance = "_service_maintenance:"
)

// health returns what the instance's checks and its node's checks say: maintenance is a state that
// an operator set, everything else is observed.
func (i *instance) health() (state vip.State, health vip.Health, weight int) {
	passing, warning := i.Service.Weights.Passing, i.Service.Weights.Warning
	if passing == 0 && warning == 0 { // registered without weights
		passing, warning = vip.DefaultWeight, vip.DefaultWeight
	}
	state, health, weight = vip.Ready, vip.Healthy, passing
	for _, c := range i.Checks {
		switch {
		case c.CheckID == nodeMaintenance, strings.HasPrefix(c.CheckID, serviceMaintenance):
			state = vip.Maint
		case c.isCritical():
			health, weight = vip.Unhealthy, passing
		case c.Status == "warning" && health == vip.Healthy:
			weight = warning
		}
	}
	if state == vip.Maint {
		weight = passing
	}
	return state, health, weight
}

// reason names the first critical check of the instance.
func (i *instance) reason() vip.Reason {
	if at := slices.IndexFunc(i.Checks, func(c check) bool { return c.isCritical() }); at >= 0 {
		return vip.ReasonText("Consul check critical: " + cmp.Or(i.Checks[at].Critical, i.Checks[at].CheckID))
	}
	return vip.Reason{}
}

// address returns the address of the instance and its port. The source's tagged address comes
// first, then the instance's own address, then the node's.
func (i *instance) address(tag string) (address string, number int) {
	s := &i.Service
	for _, name := range taggedNames(tag) {
		if a, has := s.TaggedAddresses[name]; has && a.Address != "" {
			return a.Address, cmp.Or(a.Port, i.port())
		}
	}
	if s.Address != "" && !wrongFamily(tag, s.Address) {
		return s.Address, i.port()
	}
	for _, name := range taggedNames(tag) {
		if a := i.Node.TaggedAddresses[name]; a != "" && (s.Address == "" || wrongFamily(tag, s.Address)) {
			return a, i.port()
		}
	}
	return cmp.Or(s.Address, i.Node.Address), i.port()
}

// taggedNames returns the names of the tagged addresses in Consul that match a setting, the best
// first.
func taggedNames(tag string) []string {
	switch tag {
	case "":
		return nil
	case "lan", "wan":
		return []string{tag, tag + "_ipv4", tag + "_ipv6"}
	case "ipv4", "ipv6":
		return []string{"lan_" + tag}
	}
	return []string{tag}
}

// wrongFamily reports whether an address does not have the family of the setting.
func wrongFamily(tag, address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && (tag == "ipv4" && !a.Is4() || tag == "ipv6" && a.Is4())
}

// port returns the instance's own port; 0: none.
func (i *instance) port() int {
	for _, p := range i.Service.Ports {
		if p.Default {
			return p.Port
		}
	}
	return i.Service.Port
}

// ports returns the instance's ports with their names.
func (i *instance) ports(tag string) []port {
	if len(i.Service.Ports) == 0 {
		if _, number := i.address(tag); number != 0 {
			return []port{{"", number}}
		}
		return nil
	}
	var out []port
	for _, p := range i.Service.Ports {
		out = append(out, port{p.Name, p.Port})
	}
	return out
}

// zone returns the instance's zone.
func (i *instance) zone() string {
	for _, l := range []*locality{i.Service.Locality, i.Node.Locality} {
		if l != nil && l.Zone != "" {
			return l.Zone
		}
	}
	return cmp.Or(i.Service.Meta[metaPrefix+"zone"], i.Node.Meta[metaPrefix+"zone"], i.Node.Meta["zone"])
}

// backend returns the instance as a backend. Own means that it uses the instance's own port, if
// any, instead of the service's target ports.
func (i *instance) backend(tag string, own bool) spec.Backend {
	state, health, weight := i.health()
	address, number := i.address(tag)
	if !own {
		number = 0
	}
	return spec.Backend{Address: address, Port: spec.PortNumber(number), Weight: &weight, State: state.String(), Node: i.Node.Node, Zone: i.zone(),
		Health: health, Reason: i.reason()}
}

// sortInstances sorts instances by node and ID, so that the order is the same on every host.
func sortInstances(in []instance) {
	slices.SortFunc(in, func(a, b instance) int {
		return cmp.Or(cmp.Compare(a.Node.Node, b.Node.Node), cmp.Compare(a.Service.ID, b.Service.ID))
	})
}
