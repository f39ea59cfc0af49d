package resolved

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/wake"
)

// manager is systemd-resolved. Its calls fail if it isn't running; none starts it.
type manager interface {
	// Link returns what systemd-resolved has stored for a link.
	Link(ctx context.Context, index int) (stored, error)
	// Set stores the settings for a link. It is idempotent.
	Set(ctx context.Context, index int, s Settings) error
	// Revert removes what was stored for a link.
	Revert(ctx context.Context, index int) error
	// Changed delivers when systemd-resolved started or ended.
	Changed() <-chan struct{}
	// Closed is closed when the connection ended.
	Closed() <-chan struct{}
	Close()
}

// The names on the bus.
const (
	service       = "org.freedesktop.resolve1"
	managerPath   = "/org/freedesktop/resolve1"
	managerMethod = "org.freedesktop.resolve1.Manager."
	linkInterface = "org.freedesktop.resolve1.Link"
)

// server and domain are the wire formats of servers and domains.
type (
	server struct {
		Family  int32
		Address []byte
		Port    uint16
		Name    string // for DNS over TLS
	}
	domain struct {
		Name    string
		Routing bool // no search domain
	}
)

// stored is what systemd-resolved has for a link.
type stored struct {
	servers      []server
	domains      []domain
	defaultRoute bool   // also asks the servers for names outside the domains
	dnssec, tls  string // "no" or a mode
	inUse        bool   // the link has what systemd-resolved requires: it is up and has an address
}

// dnsPort is what systemd-resolved shows as 0.
const dnsPort = 53

func serversOf(s Settings) []server {
	out := make([]server, len(s.Servers))
	for i, a := range s.Servers {
		out[i] = server{Family: unix.AF_INET, Address: a.Addr().AsSlice(), Port: a.Port()}
		if a.Addr().Is6() {
			out[i].Family = unix.AF_INET6
		}
	}
	return out
}

func domainsOf(s Settings) []domain {
	out := make([]domain, len(s.Domains))
	for i, d := range s.Domains {
		out[i] = domain{d, true}
	}
	return out
}

// fits reports whether nothing has to be set.
func (x stored) fits(s Settings) bool {
	return !x.defaultRoute && x.dnssec == "no" && x.tls == "no" && slices.Equal(x.domains, domainsOf(s)) &&
		slices.EqualFunc(x.servers, serversOf(s), func(a, b server) bool { return a.place() == b.place() })
}

func (a server) place() netip.AddrPort {
	addr, _ := netip.AddrFromSlice(a.Address)
	if a.Port == 0 {
		a.Port = dnsPort
	}
	return netip.AddrPortFrom(addr, a.Port)
}

// bus is a connection to the system bus.
type bus struct {
	conn    *dbus.Conn
	changed wake.Signal
	cancel  context.CancelFunc
}

// connect returns a connection that ends with ctx. A bus that doesn't answer is an error after
// callTimeout.
func connect(ctx context.Context) (*bus, error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(callTimeout, cancel) // the library has no other bound for the handshake
	b, err := handshake(ctx)
	if timer.Stop() && err == nil {
		b.cancel = cancel
		return b, nil
	}
	cancel()
	if err == nil {
		b.conn.Close()
		err = context.DeadlineExceeded
	}
	return nil, errNoBus(err)
}

func handshake(ctx context.Context) (*bus, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	b := &bus{conn: conn, changed: wake.New()}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender("org.freedesktop.DBus"), dbus.WithMatchInterface("org.freedesktop.DBus"),
		dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, service))
	if err != nil {
		conn.Close()
		return nil, err
	}
	forwarding, _ := parallel.NewGroup(ctx)
	forwarding.Go(func() error {
		for range signals { // the library closes it with the connection
			b.changed.Set()
		}
		return nil
	})
	return b, nil
}

func (b *bus) Changed() <-chan struct{} { return b.changed }
func (b *bus) Closed() <-chan struct{}  { return b.conn.Context().Done() }

// Close implements manager.
func (b *bus) Close() {
	b.conn.Close()
	b.cancel()
}

// call calls a method of systemd-resolved, without starting it.
func (b *bus) call(ctx context.Context, method string, args ...any) *dbus.Call {
	return b.conn.Object(service, managerPath).CallWithContext(ctx, managerMethod+method, dbus.FlagNoAutoStart, args...)
}

func (b *bus) Link(ctx context.Context, index int) (x stored, err error) {
	var path dbus.ObjectPath
	if err := b.call(ctx, "GetLink", int32(index)).Store(&path); err != nil {
		return x, err
	}
	var all map[string]dbus.Variant
	err = b.conn.Object(service, path).CallWithContext(ctx, "org.freedesktop.DBus.Properties.GetAll", dbus.FlagNoAutoStart, linkInterface).Store(&all)
	if err != nil {
		return x, err
	}
	var scopes uint64
	for name, to := range map[string]any{"DNSEx": &x.servers, "Domains": &x.domains, "DefaultRoute": &x.defaultRoute, "DNSSEC": &x.dnssec, "DNSOverTLS": &x.tls, "ScopesMask": &scopes} {
		if v, ok := all[name]; ok {
			if err := v.Store(to); err != nil {
				return x, err
			}
		}
	}
	const dns = 1 << 0 // of the scopes: unicast DNS
	x.inUse = scopes&dns != 0
	return x, nil
}

// Set sets the servers last: without one, systemd-resolved doesn't use the link, so no other name is
// ever looked up there. Our zone is not signed, and our server has no TLS.
func (b *bus) Set(ctx context.Context, index int, s Settings) error {
	for _, c := range []struct {
		method string
		value  any
	}{
		{"SetLinkDefaultRoute", false}, {"SetLinkDNSSEC", "no"}, {"SetLinkDNSOverTLS", "no"},
		{"SetLinkDomains", domainsOf(s)}, {"SetLinkDNSEx", serversOf(s)},
	} {
		if err := b.call(ctx, c.method, int32(index), c.value).Err; err != nil {
			return err
		}
	}
	return nil
}

func (b *bus) Revert(ctx context.Context, index int) error {
	return b.call(ctx, "RevertLink", int32(index)).Err
}

// lookup returns what systemd-resolved has stored for the link with that name.
func lookup(ctx context.Context, name string) (stored, error) {
	index, err := kernelLinks{}.Find(name)
	if err != nil {
		return stored{}, err
	}
	b, err := connect(ctx)
	if err != nil {
		return stored{}, err
	}
	defer b.Close()
	return b.Link(ctx, index)
}

// Check returns the state of systemd-resolved for settings, without a change.
func Check(ctx context.Context, want Settings) State {
	s := State{Settings: want}
	check := func() error {
		has, err := lookup(ctx, want.Link)
		switch {
		case err != nil:
			return err
		case !has.fits(want):
			return &Problem{"systemd-resolved has other settings for interface " + want.Link, "start the agent; ironvip status shows why it can't set them"}
		case !has.inUse:
			return errLinkUnused(want.Link)
		}
		return nil
	}
	s.Problem = problemOf(check())
	s.Applied = s.Problem == nil
	return s
}
