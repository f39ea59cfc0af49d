package allocator_test

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func TestSharing(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28"), pool("q", "198.51.100.0/28")))
	same(t, "first", w.get("http", share("web", tcp(80))), "192.0.2.1")
	same(t, "another port", w.get("https", share("web", tcp(443), udp(443))), "192.0.2.1")
	same(t, "another protocol", w.get("quic", share("web", udp(80)), requests("192.0.2.1")), "192.0.2.1")
	same(t, "another key", w.get("other", share("mail", tcp(25))), "192.0.2.2")
	same(t, "another pool", w.get("far", share("web", tcp(80)), from("q")), "198.51.100.1")

	same(t, "automatic on a taken port",
		w.refused(vip.CodePortTaken, `port 443/tcp of the shared 192.0.2.1 is held by service "https" of source static`, "late", share("web", tcp(8080), tcp(443))), "")
	same(t, "requested on a taken port",
		w.refused(vip.CodePortTaken, `port 80/udp of the shared 192.0.2.1 is held by service "quic"`, "late", share("web", udp(80)), requests("192.0.2.1")), "")
	same(t, "without the key", w.refused(vip.CodeAddressTaken, `held by service "http"`, "late", ports(tcp(8080)), requests("192.0.2.1")), "")
	same(t, "with another key", w.refused(vip.CodeAddressTaken, `held by service "http"`, "late", share("mail", tcp(8080)), requests("192.0.2.1")), "")

	l, _ := w.lease("192.0.2.1")
	if len(l.Holders) != 3 || l.ShareKey != "web" || len(l.Holders[1].Ports) != 2 {
		t.Errorf("%+v", l)
	}
	same(t, "one address counts once", w.status("p").Used, 2)

	// The ports are kept over a restart: the older keeps them.
	w.restart()
	same(t, "after a restart, the later first", w.refused(vip.CodePortTaken, `held by service "https"`, "late", share("web", tcp(443))), "")

	// A port that a holder gives up is free for others.
	waiting := w.a.Freed()
	w.get("https", share("web", tcp(8443)))
	expect.True(t, freed(waiting), "a waiting service is not woken by the port")
	same(t, "the port given up", w.get("late", share("web", tcp(443))), "192.0.2.1")

	waiting = w.a.Freed()
	w.release("http")
	expect.True(t, freed(waiting), "a waiting service is not woken when a holder left")
	same(t, "its port", w.get("http2", share("web", tcp(80))), "192.0.2.1")
	for _, name := range []string{"https", "quic", "late", "http2"} {
		w.release(name)
	}
	l, _ = w.lease("192.0.2.1")
	if l.State != ipam.Cooling || l.ShareKey != "" || len(l.Holders) != 1 || l.Holders[0].Service != key("http2") {
		t.Errorf("when all have left: %+v", l)
	}
	same(t, "a new group", w.get("new", share("web", tcp(80))), "192.0.2.3")
	w.durable()
}

// A service of another namespace can't join an address, whatever its share key: clients of the address would get its content.
func TestSharingIsWithinANamespace(t *testing.T) {
	in := func(namespace string) change { return func(s *vip.Service) { s.Key.Namespace = namespace } }
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	same(t, "bank's", w.get("web", share("web", tcp(443)), in("bank")), "192.0.2.1")
	same(t, "bank's other", w.get("plain", share("web", tcp(80)), in("bank")), "192.0.2.1")
	same(t, "shop's", w.get("web", share("web", tcp(8443)), in("shop")), "192.0.2.2")
	for _, namespace := range []string{"shop", vip.DefaultNamespace} {
		got := w.assign(service("late", share("web", tcp(8443)), in(namespace), requests("192.0.2.1")))[0]
		if len(got.VIPs) > 0 || len(got.Problems) != 1 || got.Problems[0].Code != vip.CodeAddressTaken || got.Problems[0].Hint != "request another address" {
			t.Errorf("%s: %+v", namespace, got)
		}
	}
	w.restart()
	same(t, "after a restart", w.get("third", share("web", tcp(8080)), in("bank")), "192.0.2.1")
	w.durable()
}

// Port ranges on a shared address must not overlap other ranges or ports.
func TestSharingRanges(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	udps := tcps(100, 199)
	udps.Protocol = vip.UDP
	same(t, "a range", w.get("range", share("k", tcps(100, 199))), "192.0.2.1")
	same(t, "ports beside it", w.get("beside", share("k", tcp(99), tcps(200, 300))), "192.0.2.1")
	same(t, "the same of another protocol", w.get("udp", share("k", udps)), "192.0.2.1")
	for _, c := range []struct {
		port vip.Port
		want string
	}{
		{tcp(100), `port 100/tcp of the shared 192.0.2.1 overlaps 100-199/tcp, which is held by service "range" of source static`},
		{tcp(199), `port 199/tcp of the shared 192.0.2.1 overlaps 100-199/tcp`},
		{tcps(100, 199), `port 100-199/tcp of the shared 192.0.2.1 is held by service "range"`},
		{tcps(150, 160), `port 150-160/tcp of the shared 192.0.2.1 overlaps 100-199/tcp, which is held by service "range"`},
		{tcps(1, 99), `port 1-99/tcp of the shared 192.0.2.1 overlaps 99/tcp, which is held by service "beside"`},
		{tcps(1, 65535), `port 1-65535/tcp of the shared 192.0.2.1 overlaps 100-199/tcp, which is held by service "range"`},
		{udp(150), `port 150/udp of the shared 192.0.2.1 overlaps 100-199/udp, which is held by service "udp"`},
	} {
		same(t, c.want, w.refused(vip.CodePortTaken, c.want, "late", share("k", c.port)), "")
	}
	w.restart()
	w.refused(vip.CodePortTaken, `overlaps 100-199/tcp`, "late", share("k", tcp(150)))
	same(t, "a sharer keeps what it has", w.refused(vip.CodePortTaken, `port 150/tcp of the shared 192.0.2.1 overlaps 100-199/tcp, which is held by service "range"`,
		"beside", share("k", tcp(150), tcps(200, 300))), "192.0.2.1")
	waiting := w.a.Freed()
	w.get("range", share("k", tcps(100, 149)))
	expect.True(t, freed(waiting), "a waiting service is not woken by the ports")
	same(t, "the part given up", w.get("beside", share("k", tcp(150), tcps(200, 300))), "192.0.2.1")
	w.durable()
}

// A service that adds a port of another sharer keeps its address and its other ports, and gets a
// problem.
func TestSharerWithATakenPort(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	w.get("a", share("k", tcp(80)))
	w.get("b", share("k", tcp(443)))
	same(t, "b keeps the address", w.refused(vip.CodePortTaken, `port 80/tcp of the shared 192.0.2.1 is held by service "a"`, "b", share("k", tcp(80), tcp(443), tcp(8080))), "192.0.2.1")
	w.refused(vip.CodePortTaken, `port 8080/tcp of the shared 192.0.2.1 is held by service "b"`, "c", share("k", tcp(8080)))
	same(t, "a is not disturbed", w.get("a", share("k", tcp(80))), "192.0.2.1")
	commits := w.store.Commits()
	w.refused(vip.CodePortTaken, `held by service "a"`, "b", share("k", tcp(80), tcp(443), tcp(8080)))
	same(t, "commits for the same again", w.store.Commits()-commits, 0)
	w.release("a")
	same(t, "b gets it in the end", w.get("b", share("k", tcp(80), tcp(443), tcp(8080))), "192.0.2.1")
	w.durable()
}

func TestShareKeyIsChanged(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	same(t, "alone", w.get("a"), "192.0.2.1")
	same(t, "a key of its own", w.get("a", share("k", tcp(80))), "192.0.2.1")
	same(t, "joined", w.get("b", share("k", tcp(81))), "192.0.2.1")
	same(t, "another key while shared", w.refused(vip.CodeAddressTaken, `192.0.2.1 is shared under "k", among others with b`, "a", share("j", tcp(80))), "192.0.2.1")
	w.release("b")
	same(t, "another key alone", w.get("a", share("j", tcp(80))), "192.0.2.1")
	same(t, "the old key is free", w.get("c", share("k", tcp(80))), "192.0.2.2")
	same(t, "no key any more", w.get("a"), "192.0.2.1")
	same(t, "not to be joined any more", w.get("d", share("j", tcp(81))), "192.0.2.3")
	w.durable()
}

// In one batch, too, the first service of a group gets an address and the others join.
func TestGroupInOneBatch(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28", "2001:db8::/124")))
	got := w.assign(service("a", share("k", tcp(80))), service("b", share("k", tcp(81))), service("c", share("k", tcp(80))))
	same(t, "a", vips(got[0]), "192.0.2.1 2001:db8::1")
	same(t, "b", vips(got[1]), "192.0.2.1 2001:db8::1")
	if same(t, "c", vips(got[2]), ""); len(got[2].Problems) != 2 || !strings.Contains(got[2].Problems[0].Message, `held by service "a"`) {
		t.Errorf("c: %v", got[2].Problems)
	}
	same(t, "commits", w.store.Commits(), 1)
	w.durable()
}
