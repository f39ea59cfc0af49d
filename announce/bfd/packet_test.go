package bfd

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

var samplePacket = packet{state: Up, diag: DiagExpired, poll: true, multiplier: 3, mine: 0x01020304, yours: 0x05060708,
	minTX: 50 * time.Millisecond, minRX: time.Second}

func TestPacketFormat(t *testing.T) {
	const want = "\x21\xe0\x03\x18" + "\x01\x02\x03\x04" + "\x05\x06\x07\x08" + "\x00\x00\xc3\x50" + "\x00\x0f\x42\x40" + "\x00\x00\x00\x00"
	got := string(samplePacket.append(nil))
	expect.Equal(t, got, want, "packet\n%x", got)
	expect.Equal(t, must.Get(parse([]byte(want)))(t), samplePacket, "parsed")
}

// Every check of RFC 5880, 6.8.6 that needs no session.
func TestParseRejects(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(b []byte) []byte
		want  error
	}{
		{"cut", func(b []byte) []byte { return b[:23] }, errShort},
		{"empty", func(b []byte) []byte { return nil }, errShort},
		{"length below the minimum", func(b []byte) []byte { b[3] = 23; return b }, errShort},
		{"length above the payload", func(b []byte) []byte { b[3] = 25; return b }, errShort},
		{"version 0", func(b []byte) []byte { b[0] &= 31; return b }, errVersion},
		{"multiplier 0", func(b []byte) []byte { b[2] = 0; return b }, errMultiplier},
		{"multipoint", func(b []byte) []byte { b[1] |= flagMulti; return b }, errMultipoint},
		{"authentication", func(b []byte) []byte { b[1] |= flagAuth; return b }, errAuth},
		{"no discriminator of the sender", func(b []byte) []byte { clear(b[4:8]); return b }, errDiscriminator},
		{"up without a discriminator of the receiver", func(b []byte) []byte { clear(b[8:12]); return b }, errDiscriminator},
		{"down without a discriminator of the receiver", func(b []byte) []byte { clear(b[8:12]); b[1] = byte(Down) << 6; return b }, nil},
		{"longer payload", func(b []byte) []byte { return append(b, 0) }, nil},
	} {
		_, err := parse(c.spoil(samplePacket.append(nil)))
		expect.Is(t, err, c.want, c.name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(samplePacket.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		expect.Equal(t, must.Get(parse(p.append(nil)))(t), p, "parsed again")
		s := newSession(Settings{Interval: 10 * time.Millisecond, Multiplier: 1}, 1, time.Time{})
		s.receive(time.Time{}, p)
		if _, ok := s.interval(); ok != (p.minRX != 0) && !p.demand {
			t.Errorf("periodic packets: %t", ok)
		}
	})
}
