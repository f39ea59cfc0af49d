//go:build linux

package scenario

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/proxy/proxyproto"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// run is a running scenario, in one family.
type run struct {
	testing.TB
	*lab
	family      vip.Family
	hub         *hub
	host        *host
	servers     []*host // real servers
	pods        []netip.Prefix
	nodePorts   []netip.Prefix
	unsupported string // why the dataplane must refuse the scenario's services; "" if it must accept them
	held        map[string]*netlab.Conn
	marks       map[string]place
	answered    map[string]map[place]place // the server that answered each client
	probed      map[place]*checkServer     // the servers for health checks
}

// step is one action or expectation.
type step func(r *run) error

// errRefused ends a scenario on a dataplane that doesn't support its feature.
var errRefused = errors.New("the dataplane refuses the service, as it should")

// text inserts addresses: {backend1} in the scenario's family, {backend1:6} in another, {net:pod}
// for the range around a place, {gateway:pod} for the director's address in it.
func (r *run) text(s string) string {
	var old []string
	for p := range r.nodes {
		for suffix, family := range map[string]vip.Family{"": r.family, ":4": vip.IPv4, ":6": vip.IPv6} {
			old = append(old, "{"+string(p)+suffix+"}", r.addr(p, family).String())
			if a := r.addr(p, family); a.IsValid() {
				old = append(old, "{net:"+string(p)+suffix+"}", r.subnet(p, family).String())
				old = append(old, "{gateway:"+string(p)+suffix+"}", a.Prev().String())
			}
		}
	}
	return strings.NewReplacer(old...).Replace(s)
}

func key(name string) vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}
}

// put adds services, or replaces those of the same names, and waits until every host has them.
func put(text string) step {
	return func(r *run) error {
		services, err := r.hub.parse(r.text(text))
		if err != nil {
			return err
		}
		for _, s := range services {
			rev := r.hub.tables.Services.Set(s)
			for _, m := range append([]*host{r.host}, r.servers...) {
				problems, err := m.Progress().WaitApplied(r.Context(), s.Key, s.Source, rev)
				if err != nil {
					return err
				}
				for _, p := range problems {
					if p.Code == vip.CodeUnsupported && r.unsupported != "" {
						return errRefused
					}
					return fmt.Errorf("service %s: %w", s.Key, p)
				}
				if err := until(r, m.clean); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// putInPart is put, and expects that a setting has no effect and that the service's status says so.
func putInPart(text, field string) step {
	return func(r *run) error {
		if err := put(text)(r); err != nil {
			return err
		}
		var problems []vip.Problem
		for _, c := range r.host.Progress().Compiled.All() {
			problems = append(problems, c.Problems...)
		}
		if !slices.ContainsFunc(problems, func(p vip.Problem) bool { return p.Code == vip.CodeIneffective && p.Field == field }) {
			return fmt.Errorf("%v; want a problem of code %s with %s", problems, vip.CodeIneffective, field)
		}
		return nil
	}
}

// remove removes a service and waits until it gets no new connections.
func remove(name string) step {
	return func(r *run) error {
		last, _, _ := r.host.Compiled.Get(key(name))
		r.hub.tables.Services.Delete(key(name))
		problems, err := r.host.Progress().WaitGone(r.Context(), key(name), last)
		for _, p := range problems {
			err = errors.Join(err, p)
		}
		return errors.Join(err, until(r, r.host.clean))
	}
}

// state sets the override of the backend that a mark names, see as.
func state(name, mark string, s vip.State) step {
	return func(r *run) error {
		a := r.addr(r.marks[mark], r.family)
		r.hub.tables.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: key(name), Address: a}, State: s})
		return until(r, func() error {
			return r.host.settled(key(name), func(f *vip.Frontend) bool {
				return !slices.ContainsFunc(f.Backends, func(e vip.Endpoint) bool {
					return e.Addr.Addr() == a && e.Weight > 0 != (s == vip.Ready)
				})
			})
		})
	}
}

// weigh overrides the weight of a group.
func weigh(name, group string, weight uint32) step {
	return func(r *run) error {
		r.hub.tables.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: key(name)}, Group: group, Weight: weight})
		return until(r, func() error {
			if err := r.host.Compile.WaitOverridden(r.Context(), r.hub.tables.Overrides.Revision()); err != nil {
				return err
			}
			return r.host.settled(key(name), func(*vip.Frontend) bool { return true })
		})
	}
}

// restart stops the director's agent and starts another one.
func restart() step {
	return func(r *run) error {
		r.host.stop(r)
		m, err := r.startDirector(r, r.hub, r.pods, r.nodePorts)
		if err != nil {
			return err
		}
		r.host = m
		<-m.Loop.Synced()
		return nil
	}
}

// at resolves the target of a request: "web" is the VIP and the first port of a service,
// "web:7053/udp" another port, "web@node" the node port of its first port on the director's
// address, "web:7053/udp@node" that of another port, "host:7022/tcp" the director itself.
func (r *run) at(to string) (network string, at netip.AddrPort, err error) {
	service, where, _ := strings.Cut(to, "@")
	name, port, stated := strings.Cut(service, ":")
	var k vip.PortKey
	if stated {
		number, protocol, _ := strings.Cut(port, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return "", at, err
		}
		k.Port = uint16(n)
		if err := k.Protocol.UnmarshalText([]byte(protocol)); err != nil {
			return "", at, err
		}
	}
	if name == "host" {
		return k.Protocol.String(), netip.AddrPortFrom(r.addr(director, r.family), k.Port), nil
	}
	s, _, ok := r.hub.tables.Services.Get(key(name))
	granted, _, _ := r.host.Allocations.Get(key(name))
	if !ok {
		return "", at, fmt.Errorf("there is no service %s", name)
	}
	if !stated {
		k = vip.PortKey{Port: s.Ports[0].Port, Protocol: s.Ports[0].Protocol}
	}
	network = k.Protocol.String()
	if where != "" {
		a := r.addr(director, r.family)
		if where != "node" {
			if a, err = netip.ParseAddr(r.text(where)); err != nil {
				return "", at, err
			}
		}
		n := granted.NodePorts[k]
		if n == 0 {
			return "", at, fmt.Errorf("%s has no node port for %s", name, k)
		}
		return network, netip.AddrPortFrom(a, n), nil
	}
	for _, a := range granted.VIPs {
		if vip.FamilyOf(a) == r.family {
			return network, netip.AddrPortFrom(a, k.Port), nil
		}
	}
	return "", at, fmt.Errorf("%s has no %s address: %v", name, r.family, granted.Problems)
}

// check is an expectation of the answers to requests from one place.
type check func(r *run, from place, got []answer) error

// pass applies checks to answers.
func pass(r *run, from place, got []answer, checks []check) error {
	for _, check := range checks {
		if err := check(r, from, got); err != nil {
			return err
		}
	}
	return nil
}

// counts expects how often each server answered. A dataplane that chooses at random needs only answers
// of the same servers.
type counts map[place]int

func by(want counts) check {
	return func(r *run, _ place, got []answer) error {
		have := counts{}
		for _, a := range got {
			have[place(a.Name)]++
			if r.dataplane.random && want[place(a.Name)] == 0 {
				return fmt.Errorf("answered by %s, want any of %v", a.Name, want)
			}
		}
		if !r.dataplane.random && !maps.Equal(have, want) {
			return fmt.Errorf("answered by %v, want %v", have, want)
		}
		return nil
	}
}

// onAverage expects these counts of answers on average: each within a fifth of all answers. With 80
// answers or more, that is more than three standard deviations.
func onAverage(want counts) check {
	return func(_ *run, _ place, got []answer) error {
		have := counts{}
		for _, a := range got {
			have[place(a.Name)]++
		}
		sum := 0
		for _, n := range want {
			sum += n
		}
		for _, p := range []place{b1, b2, b3} {
			mean := len(got) * want[p] / sum
			if off := have[p] - mean; want[p] == 0 && off != 0 || 5*max(off, -off) > len(got) {
				return fmt.Errorf("answered by %v, want on average %v", have, want)
			}
		}
		return nil
	}
}

// only expects that one place gave every answer.
func only(p place) check {
	return func(r *run, from place, got []answer) error { return by(counts{p: len(got)})(r, from, got) }
}

// anyOf expects answers from each of these places, and from no other.
func anyOf(want ...place) check {
	return func(_ *run, _ place, got []answer) error {
		have := map[place]bool{}
		for _, a := range got {
			have[place(a.Name)] = true
		}
		for _, p := range want {
			if !have[p] {
				return fmt.Errorf("%s never answered, %v did", p, have)
			}
		}
		if len(have) > len(want) {
			return fmt.Errorf("answered by %v, want %v", have, want)
		}
		return nil
	}
}

// same expects that one place gave all answers. as also records the place.
func same(_ *run, _ place, got []answer) error {
	for _, a := range got {
		if a.Name != got[0].Name {
			return fmt.Errorf("answered by %s and by %s", got[0].Name, a.Name)
		}
	}
	return nil
}

func as(mark string) check {
	return func(r *run, from place, got []answer) error {
		r.marks[mark] = place(got[0].Name)
		return same(r, from, got)
	}
}

// marked expects the recorded server, other a different one.
func marked(mark string) check {
	return func(r *run, from place, got []answer) error { return only(r.marks[mark])(r, from, got) }
}

func not(mark string) check {
	return func(r *run, _ place, got []answer) error {
		for _, a := range got {
			if place(a.Name) == r.marks[mark] {
				return fmt.Errorf("answered by %s again", a.Name)
			}
		}
		return nil
	}
}

// seen expects the client address that the servers see.
func seen(p place) check {
	return func(r *run, _ place, got []answer) error {
		for _, a := range got {
			if !r.is(a.Client.Addr(), p) {
				return fmt.Errorf("%s saw %s, want %s", a.Name, a.Client, p)
			}
		}
		return nil
	}
}

// kept expects that the servers see the client or, if the dataplane can't do that, this host.
func kept(r *run, from place, got []answer) error {
	if r.dataplane == userspace {
		from = director
	}
	return seen(from)(r, from, got)
}

// replaced expects that the servers see this host.
func replaced(r *run, from place, got []answer) error { return seen(director)(r, from, got) }

// ask sends the given number of requests, each with a new connection.
func ask(from place, to string, times int, checks ...check) step {
	return func(r *run) error {
		network, at, err := r.at(to)
		if err != nil {
			return err
		}
		var got []answer
		for range times {
			a, err := r.once(from, network, at)
			if err != nil {
				return fmt.Errorf("%s asks %s (%s/%s): %w", from, to, at, network, err)
			}
			got = append(got, a)
		}
		if err := pass(r, from, got, checks); err != nil {
			return fmt.Errorf("%s asks %s (%s/%s): %w", from, to, at, network, err)
		}
		return nil
	}
}

// connect connects from a place to a target of a request.
func (r *run) connect(from place, to string) (c *netlab.Conn, at netip.AddrPort, err error) {
	network, at, err := r.at(to)
	if err != nil {
		return nil, at, err
	}
	if c, err = r.dial(r, from, network, at); err != nil {
		return nil, at, fmt.Errorf("%s connects to %s (%s/%s): %w", from, to, at, network, err)
	}
	return c, at, nil
}

// once sends a request with a new connection. UDP sockets stay open until the scenario's end,
// because a later socket on the same port would be the same client to a dataplane.
func (r *run) once(from place, network string, at netip.AddrPort) (answer, error) {
	c, err := r.dial(r, from, network, at)
	if err != nil {
		return answer{}, err
	}
	if network != "udp" {
		defer c.Close()
	}
	return c.Ask()
}

// askHalfClosed sends a request and closes its side before the answer arrives.
func askHalfClosed(from place, to string) step {
	return func(r *run) error {
		c, _, err := r.connect(from, to)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("?\n")); err != nil {
			return err
		}
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(maxWait))
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(got), string(b1)) {
			return fmt.Errorf("the answer to a closed side is %q, %w", got, err)
		}
		return nil
	}
}

// spread sends one request from each of the client's first n other addresses, and records which
// server answered each client.
func spread(n int, to, record string, checks ...check) step {
	return func(r *run) error {
		network, at, err := r.at(to)
		if err != nil {
			return err
		}
		r.answered[record] = map[place]place{}
		var got []answer
		for i := range n {
			a, err := r.once(other(i), network, at)
			if err != nil {
				return fmt.Errorf("%s asks %s: %w", other(i), to, err)
			}
			r.answered[record][other(i)] = place(a.Name)
			got = append(got, a)
		}
		if err := pass(r, client, got, checks); err != nil {
			return fmt.Errorf("%d clients ask %s: %w", n, to, err)
		}
		return nil
	}
}

// stayed compares two records. Of the clients with a backend other than gone, at most the given
// percentage may have another server in the later record.
func stayed(before, after string, gone place, percent int) step {
	return func(r *run) error {
		of, moved := 0, 0
		for c, p := range r.answered[before] {
			if p == gone {
				continue
			}
			of++
			if r.answered[after][c] != p {
				moved++
			}
		}
		if 100*moved > percent*of {
			return fmt.Errorf("%d of %d clients moved", moved, of)
		}
		return nil
	}
}

// refused expects a refusal: a reset or a port-unreachable error, not silence.
func refused(from place, to string) step {
	return func(r *run) error {
		network, at, err := r.at(to)
		if err != nil {
			return err
		}
		a, err := r.once(from, network, at)
		if !isRefusal(err, from, network) {
			return fmt.Errorf("%s asks %s (%s/%s): answer %v, %v; want a refusal", from, to, at, network, a, err)
		}
		return nil
	}
}

func isRefusal(err error, from place, network string) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	// For local output, the kernel returns an error to the sender of a refused datagram before the
	// ICMP error arrives.
	return network == "udp" && from == director && errors.Is(err, syscall.EPERM)
}

// ignored expects a datagram to get no answer of any kind.
func ignored(from place, to string) step {
	return func(r *run) error {
		c, _, err := r.connect(from, to)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("?\n")); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%s asks %s: %d bytes, %v; want nothing", from, to, n, err)
		}
		return nil
	}
}

// hold connects, sends one request and keeps the connection.
func hold(name string, from place, to string, checks ...check) step {
	return func(r *run) error {
		c, _, err := r.connect(from, to)
		if err != nil {
			return err
		}
		r.held[name] = c
		return held(name, append(checks, as(name))...)(r)
	}
}

// holdAll holds n connections and checks all their answers.
func holdAll(n int, from place, to string, checks ...check) step {
	return func(r *run) error {
		var got []answer
		for i := range n {
			name := fmt.Sprintf("%s %d", to, i)
			keep := func(_ *run, _ place, a []answer) error { got = append(got, a...); return nil }
			if err := hold(name, from, to, keep)(r); err != nil {
				return err
			}
		}
		if err := pass(r, from, got, checks); err != nil {
			return fmt.Errorf("%s holds connections to %s: %w", from, to, err)
		}
		return nil
	}
}

// held sends another request on a held connection.
func held(name string, checks ...check) step {
	return func(r *run) error {
		a, err := r.held[name].Ask()
		if err != nil {
			return fmt.Errorf("connection %s: %w", name, err)
		}
		if err := pass(r, client, []answer{a}, checks); err != nil {
			return fmt.Errorf("connection %s: %w", name, err)
		}
		return nil
	}
}

// moved is held for a connected UDP socket of the director whose backend has left. If it was balanced at connect(), its program
// is told, and connects again.
func moved(name, to string, checks ...check) step {
	return func(r *run) error {
		if r.cgroup == "" {
			return held(name, checks...)(r)
		}
		if a, err := r.held[name].Ask(); err == nil {
			return fmt.Errorf("the program with the connection %s isn't told, and %s answers", name, a.Name)
		}
		return hold(name, director, to, checks...)(r)
	}
}

// ended expects that a connection ends: it gets replies until then, and then an error.
func ended(name string) step {
	return func(r *run) error {
		return until(r, func() error {
			a, err := r.held[name].Ask()
			if err == nil {
				if place(a.Name) != r.marks[name] {
					return fmt.Errorf("connection %s goes on with %s", name, a.Name)
				}
				return fmt.Errorf("connection %s is still answered by %s", name, a.Name)
			}
			if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
				return fmt.Errorf("connection %s doesn't end: %w", name, err)
			}
			return nil
		})
	}
}

// resend sends on a held UDP socket until it gets a reply: with dr and tunnel, the kernel drops a
// datagram that arrives while it removes the entries of a deleted backend.
func resend(r *run, name string) (a answer, err error) {
	const wait = 200 * time.Millisecond
	c := r.held[name]
	for range int(maxWait / wait) {
		if _, err := c.Write([]byte("?\n")); err != nil {
			return a, err
		}
		c.SetReadDeadline(time.Now().Add(wait))
		buf := make([]byte, 256)
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return a, err
		}
		name, seen, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
		a.Name = name
		a.Client, err = netip.ParseAddrPort(seen)
		return a, err
	}
	return a, fmt.Errorf("nothing within %s", maxWait)
}

// resent expects an answer to one of several datagrams.
func resent(name string, checks ...check) step {
	return func(r *run) error {
		a, err := resend(r, name)
		if err == nil {
			err = pass(r, client, []answer{a}, checks)
		}
		if err != nil {
			return fmt.Errorf("socket %s: %w", name, err)
		}
		return nil
	}
}

// resentInVain expects a refusal of one of several datagrams.
func resentInVain(name string) step {
	return func(r *run) error {
		if a, err := resend(r, name); !isRefusal(err, client, "udp") {
			return fmt.Errorf("socket %s: %v, %v; want a refusal", name, a, err)
		}
		return nil
	}
}

// endedUDP expects that a client that keeps its port is refused.
func endedUDP(name string) step {
	return func(r *run) error {
		if a, err := r.held[name].Ask(); !isRefusal(err, client, "udp") {
			return fmt.Errorf("socket %s: %v, %v; want a refusal", name, a, err)
		}
		return nil
	}
}

// release closes held connections.
func release(names ...string) step {
	return func(r *run) error {
		for _, n := range names {
			r.held[n].Close()
		}
		return nil
	}
}

// eventually retries a step until it succeeds.
func eventually(s step) step {
	return func(r *run) error { return until(r, func() error { return s(r) }) }
}

// on has a step for each dataplane that doesn't refuse the scenario, for differences between them.
type on map[*dataplane]step

func (o on) step(r *run) error { return o[r.dataplane](r) }

// ifRandom takes a step on dataplanes that choose at random, and another one on those that take turns.
func ifRandom(random, turns step) step {
	return func(r *run) error {
		if r.dataplane.random {
			return random(r)
		}
		return turns(r)
	}
}

// inKernel has one step for the dataplanes that forward packets in the kernel, and one for the proxy.
func inKernel(forwarded, relayed step) step {
	return on{kernel: forwarded, nftables: forwarded, userspace: relayed}.step
}

// all combines steps into one.
func all(steps ...step) step {
	return func(r *run) error {
		for i, s := range steps {
			if err := s(r); err != nil {
				return fmt.Errorf("part %d: %w", i+1, err)
			}
		}
		return nil
	}
}

// serveAt starts another server at a place, until the scenario ends.
func serveAt(p place, network string, port uint16) step {
	return func(r *run) error {
		if network == "sctp" && r.unsupported != "" {
			return nil // this kernel may not support it
		}
		r.nodes[p].For(r).Serve(network, netip.AddrPortFrom(r.addr(p, r.family), port))
		return nil
	}
}

// hostAddr adds an address to the director, on the client's side.
func hostAddr(text string) step {
	return func(r *run) error {
		r.nodes[director].For(r).AddAddr(string(client), netip.MustParsePrefix(text))
		return nil
	}
}

func noHostAddr(text string) step {
	return func(r *run) error {
		r.nodes[director].For(r).DelAddr(string(client), netip.MustParsePrefix(text))
		return nil
	}
}

// noFrontendAt expects that nothing is served on an address.
func noFrontendAt(text string) step {
	return func(r *run) error {
		for k := range r.host.Frontends.All() {
			if k.Addr == netip.MustParseAddr(text) {
				return fmt.Errorf("%s is still there", k)
			}
		}
		return nil
	}
}

// patiently is eventually for a step that delays the awaited state: there are pauses before each try. A dataplane that
// chooses at random needs many tries.
func patiently(pause time.Duration, grow int, s step) step {
	return func(r *run) error {
		var err error
		for wait, waited := pause, time.Duration(0); waited < maxWait; wait *= time.Duration(grow) {
			select {
			case <-r.Context().Done():
				return r.Context().Err()
			case <-time.After(wait):
			}
			waited += wait
			if err = s(r); err == nil {
				return nil
			}
		}
		return err
	}
}

// quickUDP makes the kernel delete entries of UDP clients after a second, for this scenario.
// Affinity lasts for as long as there are entries.
func quickUDP() step {
	return func(r *run) error {
		if r.dataplane != kernel {
			return nil
		}
		r.Cleanup(func() { ipvsadm(r, "--set", "0", "0", "300") })
		ipvsadm(r, "--set", "0", "0", "1")
		return nil
	}
}

func ipvsadm(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command("ipvsadm", args...).CombinedOutput()
	expect.Succeed(t, err, "ipvsadm %v: %s", args, out)
}

// endpoints expects that a port has these backends, including leaving ones.
func endpoints(to string, want ...place) step {
	return func(r *run) error {
		network, at, err := r.at(to)
		if err != nil {
			return err
		}
		for k, f := range r.host.Frontends.All() {
			if k.AddrPort() != at || k.Protocol.String() != network {
				continue
			}
			have := counts{}
			for _, e := range f.Backends {
				for p := range r.nodes {
					if r.addr(p, r.family) == e.Addr.Addr() {
						have[p]++
					}
				}
			}
			for _, p := range want {
				if have[p] == 0 {
					return fmt.Errorf("%s has the backends %v", k, have)
				}
			}
			if len(have) != len(want) {
				return fmt.Errorf("%s has the backends %v", k, have)
			}
			return nil
		}
		return fmt.Errorf("there is no frontend at %s/%s", at, network)
	}
}

// serveBehindProxy starts servers that require a PROXY header.
func serveBehindProxy(port uint16, places ...place) step {
	return func(r *run) error {
		for _, p := range places {
			r.nodes[p].For(r).ServeBehindProxy(netip.AddrPortFrom(r.addr(p, r.family), port))
		}
		return nil
	}
}

// balance sends a request with a PROXY header, as a balancer at the place from does for a client,
// and expects that the server sees the client with that address.
func balance(from place, to string, v proxyproto.Version, client place, checks ...check) step {
	return func(r *run) error {
		c, at, err := r.connect(from, to)
		if err != nil {
			return err
		}
		defer c.Close()
		h := proxyproto.Header{Source: netip.AddrPortFrom(r.addr(client, r.family), 1234), Destination: netip.AddrPortFrom(at.Addr(), 443)}
		if _, err := c.Write(h.Append(nil, v)); err != nil {
			return err
		}
		a, err := c.Ask()
		if err == nil {
			err = pass(r, client, []answer{a}, checks)
		}
		if err != nil {
			return fmt.Errorf("%s balances %s to %s (%s): %w", from, client, to, at, err)
		}
		return nil
	}
}

// realServers starts an agent at each of these places, as a real server for the services of the
// director.
func realServers(places ...place) step {
	return func(r *run) error {
		if r.unsupported != "" {
			return nil // the dataplane refuses the services for real servers
		}
		for _, p := range places {
			plane, err := r.openAt(p)
			if err != nil {
				return err
			}
			own := []netip.Addr{r.addr(p, vip.IPv4), r.addr(p, vip.IPv6)}
			addrs := table.New(r.hub.tables.Clock, hostnet.KeyOf, hostnet.Same)
			addrs.Set(hostnet.Snapshot{Addrs: []hostnet.Addr{
				{Prefix: netip.PrefixFrom(own[0], 24), Link: "eth0"}, {Prefix: netip.PrefixFrom(own[1], 64), Link: "eth0"},
			}})
			m := r.hub.startHost(r, plane, nil, compile.Node{Name: string(p), RealServer: true}, addrs, nil)
			r.servers = append(r.servers, m)
			<-m.Loop.Synced()
		}
		return nil
	}
}

// serveVIP starts servers at places that hold the VIP.
func serveVIP(to string, places ...place) step {
	return func(r *run) error {
		network, at, err := r.at(to)
		for _, p := range places {
			r.nodes[p].For(r).Serve(network, at)
		}
		return err
	}
}

// heldFor sends several requests on a held connection.
func heldFor(name string, times int, checks ...check) step {
	return func(r *run) error {
		var got []answer
		keep := func(_ *run, _ place, a []answer) error { got = append(got, a...); return nil }
		for range times {
			if err := held(name, keep)(r); err != nil {
				return err
			}
		}
		if err := pass(r, client, got, checks); err != nil {
			return fmt.Errorf("connection %s: %w", name, err)
		}
		return nil
	}
}
