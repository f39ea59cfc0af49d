package control

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// A changed VIP is one message with one row, and no timer delays it on either side: in the fake time
// of the test, none passes.
func TestChangesTravelAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		clock := &table.Clock{}
		eligible := table.New(clock, announce.KeyOfEligible, nil)
		addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
		for i := range 100 {
			eligible.Set(announce.Eligible{Addr: addr(i), Mode: announce.L2, Services: 1})
		}
		log := slog.New(slog.DiscardHandler)
		link := &Link{Settings: func() (announce.Settings, <-chan struct{}) { return announce.Settings{Node: "lb1"}, nil },
			Eligible: eligible, Tables: NewTables(clock), Log: log}
		var mu sync.Mutex
		var got []Request
		take := func() []Request {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := got
			got = nil
			return out
		}
		server := &Server{Tables: NewTables(clock), Log: log, Receive: func(r *Request, _ bool) {
			mu.Lock()
			defer mu.Unlock()
			if r != nil {
				got = append(got, *r)
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		near, far := net.Pipe()
		var running sync.WaitGroup
		defer running.Wait()
		defer far.Close()
		defer near.Close()
		defer cancel()
		agent := newConn(near)
		running.Go(func() { server.serve(ctx, newConn(far)) })
		running.Go(func() { _ = link.follow(agent) })
		running.Go(func() { _ = link.send(ctx, agent) })

		rows := 0
		all := take()
		for _, r := range all {
			rows += len(r.Eligible)
		}
		if rows != 100 || !all[len(all)-1].Synced || all[0].Settings.Node != "lb1" {
			t.Fatalf("%d rows at first: %+v", rows, all)
		}
		began := time.Now()
		for i := range 3 {
			eligible.Set(announce.Eligible{Addr: addr(i), Mode: announce.L2, Reason: "no usable backend"})
			if all := take(); len(all) != 1 || len(all[0].Eligible) != 1 || all[0].Eligible[0].Addr != addr(i) || all[0].Eligible[0].Services != 0 {
				t.Errorf("%+v", all)
			}
		}
		eligible.Delete(addr(9))
		if all := take(); len(all) != 1 || !slices.Equal(all[0].Removed, []netip.Addr{addr(9)}) {
			t.Errorf("%+v", all)
		}
		// And back.
		server.Announcements.Set(announce.Announcement{Addr: addr(1), Why: "no eligible host"})
		synctest.Wait()
		if n, _, ok := link.Announcements.Get(addr(1)); !ok || n.Why != "no eligible host" {
			t.Errorf("%+v", n)
		}
		expect.Equal(t, time.Since(began), 0, "have passed")
	})
}

// Whatever an agent sends, the server reads it to its end, and passes nothing on before a message of its protocol.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{"", "{}\n", fmt.Sprintf("{\"protocol\":%d,\"keepalive\":-5}\n{}\n", Protocol), "null\n", "{\"protocol\":\"x\"}\n", "[1]\n", "{\"eligible\":{\"set\":[null]}}\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		near, far := net.Pipe()
		begun, received := false, 0
		s := &Server{Log: slog.New(slog.DiscardHandler), Receive: func(*Request, bool) {
			if received++; !begun {
				t.Error("a message of another protocol is passed on")
			}
		}}
		c := newConn(near)
		s.current = c
		go func() {
			far.Write(stream)
			far.Close()
		}()
		go io.Copy(io.Discard, far) // answers
		if err := s.read(c, func(string) error { begun = true; return nil }); err == nil {
			t.Error("the end of the connection is no error")
		}
		near.Close()
	})
}
