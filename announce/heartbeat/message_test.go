package heartbeat

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
)

var secret = [][]byte{[]byte("a shared secret")}

// sample returns a message with claims of each kind: a plain one, one with every field of its policy, and an empty one.
func sample() *message {
	return &message{name: "lb1", flags: flagReceives, missed: 3, weight: 1, interval: 100 * time.Millisecond, epoch: 7, seq: 9, to: 11, echoEpoch: 13, echoSeq: 15,
		uptime: 1500 * time.Millisecond, config: 17, number: 21, digest: 19, acked: 20, base: 18, upto: 20,
		claims: []announce.Claim{{Addr: netip.MustParseAddr("192.0.2.10"), Services: 2, Owned: true}, {Addr: netip.MustParseAddr("2001:db8::1"), Services: 1, Policy: announce.Policy{Above: 100, Standby: true, Moved: 1 << 31, Pinned: true}}, {Addr: netip.MustParseAddr("192.0.2.11")}}}
}

func same(a, b *message) bool {
	x, y := *a, *b
	x.claims, y.claims = nil, nil
	return slices.Equal(a.claims, b.claims) && equal(x, y)
}

func equal(a, b message) bool {
	k := newKeys(secret)
	return bytes.Equal(a.encode(nil, k), b.encode(nil, k))
}

func TestMessageRoundTrip(t *testing.T) {
	k := newKeys(secret)
	m := sample()
	b := m.encode(nil, k)
	got, err := decode(b, k)
	if err != nil || !same(got, m) || got.name != "lb1" || got.uptime != m.uptime || got.upto != 20 {
		t.Fatalf("%+v, %v", got, err)
	}
	if old := newKeys([][]byte{[]byte("new"), secret[0]}); true {
		if _, err := decode(b, old); err != nil {
			t.Errorf("a message with the second key: %v", err)
		}
	}
}

// Each bit of a message is authenticated.
func TestForgedMessages(t *testing.T) {
	k := newKeys(secret)
	good := sample().encode(nil, k)
	for bit := range len(good) * 8 {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decode(b, k); err == nil {
			t.Fatalf("bit %d may be flipped", bit)
		}
	}
	if _, err := decode(sample().encode(nil, newKeys([][]byte{[]byte("another")})), k); !errors.Is(err, errForged) {
		t.Errorf("another key: %v", err)
	}
	if _, err := decode(good, nil); !errors.Is(err, errForged) {
		t.Errorf("no key: %v", err)
	}
}

// An authenticated message with impossible content is refused, too: versions of ironvip may differ.
func TestMalformedMessages(t *testing.T) {
	k := newKeys(secret)
	for name, change := range map[string]func(*message){
		"no name":           func(m *message) { m.name = "" },
		"no epoch":          func(m *message) { m.epoch = 0 },
		"no interval":       func(m *message) { m.interval = 0 },
		"unknown flag":      func(m *message) { m.flags = 128 },
		"range backward":    func(m *message) { m.base = m.upto + 1 },
		"range past number": func(m *message) { m.upto = m.number + 1 },
		"multicast":         func(m *message) { m.claims[0].Addr = netip.MustParseAddr("224.0.0.1") },
		"mapped":            func(m *message) { m.claims[1].Addr = netip.MustParseAddr("::ffff:192.0.2.1") },
		"name not UTF-8":    func(m *message) { m.name = "\xff" },
	} {
		m := sample()
		change(m)
		if _, err := decode(m.encode(nil, k), k); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := sample().encode(nil, k)
	if _, err := decode(append(b, 0), k); err == nil {
		t.Error("a longer message is accepted")
	}
	if _, err := decode(make([]byte, MaxSize+1), k); !errors.Is(err, errMalformed) {
		t.Errorf("too long: %v", err)
	}
}

// FuzzDecode checks that no input crashes the parser, that what it accepts is encoded the same
// again, and that it never allocates more than the packet justifies. The body is authenticated by
// the test, because the fuzzer can't.
func FuzzDecode(f *testing.F) {
	k := newKeys(secret)
	b := sample().encode(nil, k)
	f.Add(b[:len(b)-macSize])
	f.Add([]byte(magic))
	f.Add(bytes.Repeat([]byte{0xff}, headerSize+macSize))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = decode(body, k)
		packet := append(bytes.Clone(body), sum(k[0], body)...)
		m, err := decode(packet, k)
		if err != nil {
			return
		}
		expect.AtMost(t, len(m.claims)*claimMin, len(packet), "bytes of %d claims", len(m.claims))
		if again := m.encode(nil, k); m.uptime < maxUptime && !bytes.Equal(again, packet) {
			t.Errorf("encoded differently:\n%x\n%x", packet, again)
		}
	})
}

// The memory of one VIP in this host's log.
func TestMemoryPerClaim(t *testing.T) {
	const vips, most = 10_000, 140
	log := claims{at: map[netip.Addr]int{}}
	size := heapsize.Of(func() any {
		for i := range vips {
			log.set(announce.Claim{Addr: netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)}), Services: 1})
		}
		return &log
	}) / vips
	if size > most || size < most/2 {
		t.Errorf("%d bytes for each VIP, want at most %d", size, most)
	}
}
