package dnstest

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Dial opens a connection, as net.Dialer's DialContext does; it may be one of another network namespace.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Here dials from this network namespace.
func Here(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, address)
}

// Ask sends one query by "udp" or "tcp" and returns the answer as Short does. Kind is "A" or "SRV", for
// example. It waits for limit at most.
func Ask(dial Dial, limit time.Duration, network, at, name, kind string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := dial(ctx, network, at)
	if err != nil {
		return "", err
	}
	defer c.Close()
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), dns.StringToType[kind])
	q.SetEdns0(1232, false)
	reply, _, err := (&dns.Client{Net: network, Timeout: limit}).ExchangeWithConn(q, &dns.Conn{Conn: c})
	if err != nil {
		return "", err
	}
	return Short(reply), nil
}

// Asker queries a name again and again by UDP, and collects the different answers in their order. A
// missing answer is none.
type Asker struct {
	Name string
	Stop func() // waits for the end

	mu   sync.Mutex
	seen []string
	all  int
}

// Answers returns the different answers, and how many there were in all.
func (a *Asker) Answers() (seen []string, all int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.seen), a.all
}

// KeepAsking queries the A records of a name at a server until the end of the test, or until Stop.
func KeepAsking(t testing.TB, dial Dial, at, name string) *Asker {
	a := &Asker{Name: name}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		pause := time.NewTicker(time.Millisecond)
		defer pause.Stop()
		for {
			select {
			case <-done:
				return
			case <-pause.C:
			}
			answer, err := Ask(dial, 200*time.Millisecond, "udp", at, name, "A")
			if err != nil {
				continue // nothing listens
			}
			a.mu.Lock()
			a.all++
			if !slices.Contains(a.seen, answer) {
				a.seen = append(a.seen, answer)
			}
			a.mu.Unlock()
		}
	}()
	a.Stop = sync.OnceFunc(func() { close(done); <-ended })
	t.Cleanup(a.Stop)
	return a
}
