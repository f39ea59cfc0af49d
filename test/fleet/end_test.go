//go:build system

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/statecopy"
)

// settles waits until CheckEnd finds no error, twice in a row, and then checks the whole history.
func (l *lab) settles() {
	l.t.Helper()
	good := 0
	for deadline := time.Now().Add(maxWait); good < 2; time.Sleep(300 * time.Millisecond) {
		e, err := l.end()
		wrong := []string{}
		if err != nil {
			wrong = append(wrong, err.Error())
		} else {
			wrong = CheckEnd(l.history(), e)
		}
		if good++; len(wrong) > 0 {
			good = 0
		}
		if good == 0 && time.Now().After(deadline) {
			l.t.Errorf("the fleet does not come to rest as it should within %s:\n%s", maxWait, report(wrong, 20))
			break
		}
	}
	l.check()
}

// check checks the whole history.
func (l *lab) check() {
	l.t.Helper()
	h := l.history()
	if wrong := Check(h); len(wrong) > 0 {
		l.t.Errorf("broken promises:\n%s", report(wrong, 20))
	}
	count := map[Outcome]int{}
	for _, o := range h.Ops {
		count[o.Outcome]++
	}
	l.t.Logf("so far %d requests %v, %d views", len(h.Ops), count, len(h.Views))
}

// end reads the present state of everything.
func (l *lab) end() (*End, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	e := &End{At: l.now(), Wall: time.Now(), Holdings: map[string][]netip.Addr{}}
	for _, a := range l.agents {
		v, _, err := l.look(ctx, a, client.Wait{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		one := AgentEnd{View: v}
		if one.Frontends, err = frontends(ctx, a); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		if one.Leases, err = leases(ctx, a); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		e.Agents = append(e.Agents, one)
	}
	return e, l.stored(ctx, e)
}

func frontends(ctx context.Context, a *agent) (all []Frontend, err error) {
	list, err := a.api.Frontends(ctx, "")
	for _, f := range list.Items {
		addr, err := netip.ParseAddrPort(f.Address)
		if err != nil {
			return nil, err
		}
		one := Frontend{Service: f.Service, Address: addr.Addr(), Applied: f.Applied, Value: -1}
		if len(f.Backends) == 1 {
			one.Value = int(f.Backends[0].Weight)
		}
		all = append(all, one)
	}
	return all, err
}

func leases(ctx context.Context, a *agent) (all []Lease, err error) {
	list, err := a.api.VIPs(ctx, v1.KindAddress)
	for _, v := range list.Items {
		one := Lease{Cooling: v.State == "cooling"}
		if one.Address, err = netip.ParseAddr(v.Address); err != nil {
			return nil, err
		}
		if v.Until != nil {
			one.Until = *v.Until
		}
		if len(v.Holders) != 1 {
			return nil, fmt.Errorf("%s has holders %v", v.Address, v.Holders)
		}
		one.Service = v.Holders[0].Service
		all = append(all, one)
	}
	return all, err
}

// stored reads the stored leases and holdings.
func (l *lab) stored(ctx context.Context, e *End) error {
	var failed error
	read := func(folder string, each func(key string, value []byte) error) {
		if failed != nil {
			return
		}
		prefix := path.Join("ironvip/v2/tree", folder) + "/"
		all, err := l.store.list(ctx, prefix)
		failed = err
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if failed == nil {
				failed = each(strings.TrimPrefix(key, prefix), all[key])
			}
		}
	}
	read("leases", func(key string, value []byte) error {
		var in struct {
			Resource netip.Addr
			State    string
			Holders  []struct{ Service string }
			Until    time.Time
		}
		if err := decode(value, &in); err != nil || len(in.Holders) != 1 || in.Resource.String() != key {
			return fmt.Errorf("lease %s: %w: %s", key, err, value)
		}
		e.Leases = append(e.Leases, Lease{Address: in.Resource, Service: strings.TrimPrefix(in.Holders[0].Service, "default/"),
			Cooling: in.State == "cooling", Until: in.Until})
		return nil
	})
	read("holdings", func(key string, value []byte) error {
		var in struct{ Holds []netip.Addr }
		if err := decode(value, &in); err != nil {
			return fmt.Errorf("holdings %s: %w: %s", key, err, value)
		}
		if len(in.Holds) > 0 {
			e.Holdings[strings.TrimPrefix(key, "default/")] = in.Holds
		}
		return nil
	})
	return failed
}

// decode reads a value of the tree.
func decode(text []byte, into any) error {
	envelope := struct {
		V     int
		Value any
	}{Value: into}
	err := json.Unmarshal(text, &envelope)
	if err == nil && envelope.V != 1 {
		err = fmt.Errorf("version %d", envelope.V)
	}
	return err
}

// answers sends a request to at most most services of a host, from that host. It requires an answer
// from the host's own backend.
func (l *lab) answers(a *agent, most int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	asked := 0
	all, err := frontends(ctx, a)
	l.must(a.name+": its frontends", err)
	for _, f := range all {
		if !f.Applied || f.Value <= 0 { // not applied yet, or an override has taken the backend out
			continue
		}
		if asked++; asked > most {
			return
		}
		answer, err := a.node.Ask("tcp", netip.AddrPortFrom(f.Address, 80))
		if err == nil && answer.Name == a.name {
			continue
		}
		v, _, failed := l.look(ctx, a, client.Wait{})
		l.must(a.name+": its services", failed)
		if slices.Contains(v.Services[f.Service].VIPs, f.Address) { // else it was deleted meanwhile
			l.t.Errorf("%s: service %s at %s: %q %v", a.name, f.Service, f.Address, answer.Name, err)
		}
	}
	if asked == 0 {
		l.t.Errorf("%s: no service is served: %v", a.name, all)
	}
}

// remembers waits until an agent has the store's content on its disk, which it writes with a delay.
func (l *lab) remembers(a *agent) {
	l.t.Helper()
	l.eventually(a.name+" has on its disk what the store has", func(ctx context.Context) error {
		const prefix = "ironvip/v2/tree/"
		stored, err := l.store.list(ctx, prefix)
		if err != nil {
			return err
		}
		var all map[string]struct{ Value []byte }
		if err := statecopy.Look(filepath.Join(a.dir, "state"), func(db *store.DB) (err error) {
			all, err = store.NewBucket[struct{ Value []byte }](db, "fleet").All()
			return err
		}); err != nil {
			return err
		}
		for path, value := range stored {
			key := strings.TrimPrefix(path, prefix)
			if strings.Contains(key, "/") && !bytes.Equal(all[key].Value, value) {
				return fmt.Errorf("%s is %s, in the store %s", key, all[key].Value, value)
			}
		}
		return nil
	})
}

// report formats the first most errors.
func report(wrong []string, most int) string {
	if len(wrong) > most {
		wrong = append(wrong[:most:most], fmt.Sprintf("and %d more", len(wrong)-most))
	}
	return strings.Join(wrong, "\n")
}
