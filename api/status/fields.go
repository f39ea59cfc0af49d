package status

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// none is the text of a missing value.
const none = "none"

// fields collects the differences.
type fields []fieldChange

func (f *fields) compare(field, before, after string) {
	if before != after {
		*f = append(*f, fieldChange{Field: field, Before: cmp.Or(before, none), After: cmp.Or(after, none)})
	}
}

// changedFields returns the differences between two versions of a service, without its backends, in
// the order of the spec's reference page.
func changedFields(was, is *Planned) []fieldChange {
	var f fields
	a, b := &was.Service, &is.Service
	f.compare("source", a.Source, b.Source)
	f.compare("labels", labelsText(a.Labels), labelsText(b.Labels))
	f.compare("pool", a.Pool, b.Pool)
	// A change of the addresses that the service holds affects clients. A changed request without
	// that changes only the spec.
	if before, after := list(was.Allocation.VIPs), list(is.Allocation.VIPs); before != after {
		f.compare("vips", before, after)
	} else {
		f.compare("requested vips", list(a.VIPs), list(b.VIPs))
	}
	f.compare("families", list(a.Families.List()), list(b.Families.List()))
	f.compare("share_key", a.ShareKey, b.ShareKey)
	f.compare("hostnames", strings.Join(a.Hostnames.List(), " "), strings.Join(b.Hostnames.List(), " "))
	f.ports(was, is)
	f.compare("scheduler", a.Scheduler.String(), b.Scheduler.String())
	f.compare("scheduler_flags", flagsText(a), flagsText(b))
	f.compare("forward", a.Forward.String(), b.Forward.String())
	f.compare("affinity", durationText(a.Affinity), durationText(b.Affinity))
	f.compare("internal_traffic", a.InternalTraffic.String(), b.InternalTraffic.String())
	f.compare("external_traffic", a.ExternalTraffic.String(), b.ExternalTraffic.String())
	f.compare("traffic_distribution", a.Distribution.String(), b.Distribution.String())
	f.compare("health_check_node_port", nodePortText(a.HealthPort, vip.HealthPortKey, &was.Allocation), nodePortText(b.HealthPort, vip.HealthPortKey, &is.Allocation))
	f.compare("masquerade", a.Masquerade.String(), b.Masquerade.String())
	f.compare("source_ranges", list(a.SourceRanges), list(b.SourceRanges))
	f.compare("drain_timeout", durationText(a.DrainTimeout), durationText(b.DrainTimeout))
	f.compare("health", checkText(a.Check), checkText(b.Check))
	f.compare("on_unhealthy", unhealthyText(a), unhealthyText(b))
	f.compare("panic_threshold", percentText(a.PanicThreshold), percentText(b.PanicThreshold))
	f.compare("slow_start", slowText(a), slowText(b))
	f.relay(a.Relay.Get(), b.Relay.Get())
	return f
}

func (f *fields) relay(a, b vip.ProxySettings) {
	f.compare("connect_timeout", durationText(a.ConnectTimeout), durationText(b.ConnectTimeout))
	f.compare("idle_timeout", durationText(a.IdleTimeout), durationText(b.IdleTimeout))
	f.compare("half_close_timeout", durationText(a.HalfCloseTimeout), durationText(b.HalfCloseTimeout))
	f.compare("max_connections", limitText(a.MaxConnections), limitText(b.MaxConnections))
	f.compare("max_queue", limitText(a.MaxQueue), limitText(b.MaxQueue))
	f.compare("queue_timeout", durationText(a.QueueTimeout), durationText(b.QueueTimeout))
	f.compare("proxy_protocol", a.ProxyProtocol.String(), b.ProxyProtocol.String())
	f.compare("accept_proxy_from", list(a.AcceptProxyFrom), list(b.AcceptProxyFrom))
}

// ports compares ports by their numbers and protocol.
func (f *fields) ports(was, is *Planned) {
	before, after := portsByKey(was.Service.Ports), portsByKey(is.Service.Ports)
	both := maps.Clone(before)
	maps.Copy(both, after)
	for _, k := range slices.SortedFunc(maps.Keys(both), comparePorts) {
		field := fmt.Sprintf("ports[%s]", k)
		a, b := before[k], after[k]
		switch {
		case a == nil:
			f.compare(field, "", "target_port "+targetText(b))
		case b == nil:
			f.compare(field, "target_port "+targetText(a), "")
		default:
			f.compare(field+".name", a.Name, b.Name)
			f.compare(field+".target_port", targetText(a), targetText(b))
			f.compare(field+".node_port", nodePortText(a.NodePort, k, &was.Allocation), nodePortText(b.NodePort, k, &is.Allocation))
		}
	}
}

func backendFields(a, b *vip.Backend) []fieldChange {
	var f fields
	f.compare("weight", strconv.Itoa(int(a.Weight)), strconv.Itoa(int(b.Weight)))
	f.compare("state", cmp.Or(a.State, vip.Ready).String(), cmp.Or(b.State, vip.Ready).String())
	f.compare("backup", yesNo(a.Backup), yesNo(b.Backup))
	f.compare("max_connections", limitText(a.MaxConnections), limitText(b.MaxConnections))
	f.compare("node", a.Node, b.Node)
	f.compare("zone", a.Zone, b.Zone)
	f.compare("ports", string(a.Ports), string(b.Ports))
	f.compare("for_zones", string(a.ForZones), string(b.ForZones))
	f.compare("for_nodes", string(a.ForNodes), string(b.ForNodes))
	return f
}

// backendText describes a new backend.
func backendText(b *vip.Backend) string {
	t := fmt.Sprintf("weight %d", b.Weight)
	if b.State != 0 && b.State != vip.Ready {
		t += fmt.Sprintf(", %s", b.State)
	}
	if b.Backup {
		t += ", backup"
	}
	if b.Ports != "" {
		t += fmt.Sprintf(", for %s", strings.Join(b.Ports.List(), ", "))
	}
	return t
}

func portsByKey(ports []vip.Port) map[vip.PortKey]*vip.Port {
	m := make(map[vip.PortKey]*vip.Port, len(ports))
	for i := range ports {
		m[ports[i].Key()] = &ports[i]
	}
	return m
}

func comparePorts(a, b vip.PortKey) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.LastPort, b.LastPort))
}

// targetText describes a port's target. A range may keep the client's port.
func targetText(p *vip.Port) string {
	if p.TargetPort == 0 {
		return "as the client's"
	}
	return strconv.Itoa(int(p.TargetPort))
}

// portsText formats ports as in "80,443,10000-10099/tcp 443/udp".
func portsText(ports []vip.Port) string {
	var texts []string
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP, vip.SCTP} {
		var numbers []string
		for i := range ports {
			if number, of, _ := strings.Cut(ports[i].Key().String(), "/"); of == protocol.String() {
				numbers = append(numbers, number)
			}
		}
		if len(numbers) > 0 {
			texts = append(texts, fmt.Sprintf("%s/%s", strings.Join(numbers, ","), protocol))
		}
	}
	return strings.Join(texts, " ")
}

// nodePortText writes a node port as it was granted, else as it was asked for.
func nodePortText(asked vip.NodePort, k vip.PortKey, granted *vip.Allocation) string {
	if !asked.Wanted() {
		return "off"
	}
	if number := granted.NodePorts[k]; number != 0 {
		return strconv.Itoa(int(number))
	}
	if asked.Number != 0 {
		return strconv.Itoa(int(asked.Number))
	}
	return "auto"
}

func flagsText(s *vip.Service) string {
	var flags []string
	if s.SchedulerFallback {
		flags = append(flags, "fallback")
	}
	if s.SchedulerPort {
		flags = append(flags, "port")
	}
	if s.OnePacket {
		flags = append(flags, "one-packet")
	}
	return strings.Join(flags, " ")
}

// checkText writes a health check in short: its type, the path of http, and what isn't the default,
// as in "http /healthz port 8081 interval 10s". Different checks have different texts. A service
// without a check of its own has the default one.
func checkText(c *vip.HealthCheck) string {
	if c == nil {
		return "default"
	}
	words := []string{c.Type.String()}
	if c.Path != "" {
		words = append(words, c.Path)
	}
	add := func(name, value, normal string) {
		if value != normal {
			words = append(words, name, value)
		}
	}
	quoted := func(name, value string) { add(name, strconv.Quote(value), `""`) }
	probes := c.Type != vip.CheckNone // others have no times
	normal := func(d time.Duration) string {
		if probes {
			return durationText(d)
		}
		return ""
	}
	add("port", strconv.Itoa(int(c.Port)), "0")
	add("interval", durationText(c.Interval), normal(vip.DefaultCheckInterval))
	add("fast_interval", durationText(c.FastInterval), normal(min(vip.DefaultCheckFastInterval, c.Interval)))
	add("timeout", durationText(c.Timeout), normal(vip.DefaultCheckTimeout))
	rise, fall := 0, 0
	if probes {
		rise, fall = vip.DefaultRise, vip.DefaultFall
	}
	add("rise", strconv.Itoa(int(c.Rise)), strconv.Itoa(rise))
	add("fall", strconv.Itoa(int(c.Fall)), strconv.Itoa(fall))
	add("method", cmp.Or(c.Method, http.MethodGet), http.MethodGet)
	add("host", c.Host, "")
	add("status", cmp.Or(c.Status, vip.DefaultCheckStatus), vip.DefaultCheckStatus)
	quoted("body", c.Body)
	for _, flag := range []struct {
		word string
		set  bool
	}{{"tls", c.TLS}, {"skip_verify", c.SkipVerify}} {
		if flag.set {
			words = append(words, flag.word)
		}
	}
	quoted("service", c.Service)
	quoted("send", c.Send)
	quoted("expect", c.Expect)
	if c.Command != "" {
		words = append(words, text.Join(strings.Split(c.Command, "\x00"), " ", commandWord))
	}
	return strings.Join(words, " ")
}

// commandWord quotes words of a command that a reader could not tell from two words.
func commandWord(word string) string {
	if q := strconv.Quote(word); word == "" || strings.Contains(word, " ") || q != `"`+word+`"` {
		return q
	}
	return word
}

func unhealthyText(s *vip.Service) string {
	if s.ResetUnhealthy {
		return "reset"
	}
	return "drain"
}

func percentText(n uint8) string {
	if n == 0 {
		return "off"
	}
	return strconv.Itoa(int(n)) + "%"
}

func slowText(s *vip.Service) string { return cmp.Or(durationText(s.SlowStart.Duration()), "off") }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func labelsText(labels map[string]string) string {
	return text.Join(slices.Sorted(maps.Keys(labels)), " ", func(k string) string { return k + "=" + labels[k] })
}

// limitText writes nothing for 0, which is no limit.
func limitText(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

// durationText writes whole minutes and hours without their zeros ("3h", not
// "3h0m0s"), up to 90 s in seconds, and nothing for 0.
func durationText(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d <= 90*time.Second && d%time.Second == 0:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return spec.Duration(d).String()
}

func list[T fmt.Stringer](items []T) string { return text.Join(items, " ", T.String) }
