package nft

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A start with a changed table keeps all services that are whole, even those that the first batch
// doesn't have.
func TestStartKeepsServicesOfAChangedTable(t *testing.T) {
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	f, g := frontend("10.96.0.1", 80, vip.TCP, all[0]), frontend("10.96.0.2", 80, vip.TCP, all[1])
	g.Affinity = time.Minute
	w.set(f)
	w.set(g)
	w.run("nft flush chain inet ironvip_nft arriving")
	w.planeIn = newPlane(t, w.Director)
	w.Put(t, updateOf{Key: f.Key, Old: &f, New: &f, Repair: true})
	got := w.asks(w.Client, g.Key, 80, 2)
	expect.Equal(t, got["backend2"], 2, got)
	w.check(w.planeIn)
}

// A resync deletes the chains of classes that no service has, and their verdicts. A service may take such a class again at
// once. New classes get numbers of their own, also after a restart.
func TestUnusedClassesAreDeleted(t *testing.T) {
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	f, g := frontend("10.96.0.1", 80, vip.TCP, all[0]), frontend("10.96.0.1", 80, vip.TCP, all...)
	other := frontend("10.96.0.2", 80, vip.TCP, all[0])
	other.Affinity = time.Minute
	resync := func(want int) {
		t.Helper()
		w.check(w.planeIn)
		expect.Equal(t, strings.Count(w.list(), "chain class_"), want, "chains of classes")
		verdicts := strings.Count(w.list(), "goto class_")
		expect.Equal(t, verdicts, want, "verdicts")
	}
	w.set(f)
	w.set(other)
	w.Put(t, updateOf{Key: f.Key, Old: &f, New: &g})
	w.have[f.Key] = &g
	expect.Equal(t, strings.Count(w.list(), "chain class_"), 3, "chains before the resync")
	resync(2)
	w.set(f) // takes the deleted class again, and leaves the other one
	resync(2)
	w.asks(w.Client, f.Key, 80, 2)
	w.planeIn = newPlane(t, w.Director)
	resync(2)
	for i := range 3 {
		other.Affinity = time.Duration(i+2) * time.Minute
		w.set(other)
	}
	w.set(g)
	resync(2)
	numbers := map[uint32]bool{}
	for _, n := range w.content.classes {
		numbers[n] = true
	}
	expect.Equal(t, len(numbers), 2, "numbers %v", w.content.classes)
	w.asks(w.Client, f.Key, 80, 2)
	w.asks(w.Client, other.Key, 80, 2)
	w.remove(f.Key)
	w.remove(other.Key)
	resync(0)
}

// A table whose numbers of classes are all taken is rebuilt without those that no service has.
func TestClassesAreReleased(t *testing.T) {
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	f := frontend("10.96.0.1", 80, vip.TCP, all[0])
	w.set(f)
	for i := uint32(1); len(w.content.classes) < maxClass; i++ {
		w.content.classes[class{affinity: i}] = i + 1
	}
	g := frontend("10.96.0.2", 80, vip.TCP, all[1])
	g.Affinity = time.Hour
	w.set(g)
	expect.Equal(t, len(w.content.classes), 2, "classes")
	w.asks(w.Client, f.Key, 80, 2)
	w.asks(w.Client, g.Key, 80, 2)
}

// Connections with a backend that is back stay, although their end was due before.
func TestBackendIsBack(t *testing.T) {
	w := newWorld(t)
	f := frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)[0])
	w.set(f)
	c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
	defer c.Close()
	must.Get(c.Ask())(t)
	gone := f
	gone.Backends = nil
	for _, u := range []updateOf{{Key: f.Key, Old: &f, New: &gone}, {Key: f.Key, Old: &gone, New: &f}} {
		if err := w.Apply(t.Context(), []updateOf{u}); err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
	}
	expect.True(t, w.Unclean(), "nothing to clean")
	must.Succeed(t, w.Clean(t.Context()))
	expect.Equal(t, w.Stats().ConntrackFlows, 0, "connections are ended")
	if _, err := c.Ask(); err != nil {
		t.Error(err)
	}
}

// A packet that connection tracking can't assign to its connection isn't answered.
func TestInvalidPacketIsNotAnswered(t *testing.T) {
	w := newWorld(t)
	expect.Equal(t, w.run("cat /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"), "1\n", "nf_conntrack_tcp_be_liberal")
	f := frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)...)
	w.set(f)
	w.run("echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	c, err := w.Client.Dial("tcp", f.Key.AddrPort())
	must.Succeed(t, err)
	defer c.Close()
	must.Get(c.Ask())(t)
	var raw net.PacketConn
	w.Client.Do(func() { raw, err = net.ListenPacket("ip4:tcp", "0.0.0.0") })
	must.Succeed(t, err)
	defer raw.Close()
	// An acknowledgement from far outside the window, then a connection to a port without a service.
	from := c.LocalAddr().(*net.TCPAddr).AddrPort()
	const ack, syn, rst = 0x10, 0x02, 0x04
	for _, one := range []struct {
		port  uint16
		flags byte
	}{{80, ack}, {81, syn}} {
		b := segment(from, netip.AddrPortFrom(f.Key.Addr, one.port), one.flags)
		must.Get(raw.WriteTo(b, &net.IPAddr{IP: f.Key.Addr.AsSlice()}))(t)
	}
	raw.SetReadDeadline(time.Now().Add(10 * time.Second))
	for b := make([]byte, 2000); ; {
		n, _, err := raw.ReadFrom(b)
		must.Succeed(t, err)
		port := binary.BigEndian.Uint16(b)
		if n < 20 || b[13]&rst == 0 || binary.BigEndian.Uint16(b[2:]) != from.Port() {
			continue
		}
		expect.True(t, port != 80, "an open connection is reset")
		if port == 81 {
			break
		}
	}
	if _, err := c.Ask(); err != nil {
		t.Errorf("the connection: %v", err)
	}
}

// segment returns a segment of TCP over IPv4 with an arbitrary sequence number.
func segment(from, to netip.AddrPort, flags byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, 1, 2, 3, 4, 5, 6, 7, 8, 5<<4, flags, 1, 0, 0, 0, 0, 0)
	pseudo := append(append(append([]byte{}, from.Addr().AsSlice()...), to.Addr().AsSlice()...), 0, 6, 0, byte(len(b)))
	sum := uint32(0)
	for _, part := range [][]byte{pseudo, b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}
