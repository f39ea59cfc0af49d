package heartbeat

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"net/netip"
	"time"
	"unicode/utf8"

	"github.com/ironvip/ironvip/announce"
)

// MaxSize is the longest message in bytes. It fits any IPv6 link without fragmentation.
const MaxSize = 1200

const (
	magic      = "IVA\x01" // with the version of the format
	headerSize = 111
	macSize    = sha256.Size
	maxName    = 253 // of a host in the DNS
	claimMin   = 2 + 4
)

// Reasons for dropping a packet.
var (
	errMalformed = errors.New("malformed")
	errForged    = errors.New("no key of this host has authenticated it")
)

type flags uint8

const (
	flagDraining flags = 1 << iota
	flagReceives       // the sender considers the receiver alive
	flagReply          // the sender waits for an acknowledgment
	knownFlags   = flagDraining | flagReceives | flagReply
)

// message is one heartbeat.
type message struct {
	name     string
	flags    flags
	missed   uint8         // heartbeats in a row without which the sender is dead
	weight   uint16        // of the sender
	interval time.Duration // between two heartbeats, in whole microseconds
	epoch    uint64        // random for each start of the sender; never 0
	seq      uint64        // grows with each message of the epoch, to whichever host
	to       uint64        // nameID of the receiver; 0: not known
	// The newest message of the receiver that the sender has accepted, or answers.
	echoEpoch, echoSeq uint64
	uptime             time.Duration // of the sender, in whole milliseconds
	config             uint64        // digest of the settings that all hosts should share
	number, digest     uint64        // of the sender's claims: the number of the newest change, and the digest after it
	acked              uint64        // the newest change of the receiver's claims that the sender has
	// The changes of the sender's claims after the number base, up to and including upto.
	base, upto uint64
	claims     []announce.Claim
}

// keys sign and verify messages. The first one signs.
type keys []hash.Hash

// newKeys derives the keys from secrets.
func newKeys(secrets [][]byte) keys {
	out := make(keys, 0, len(secrets))
	for _, s := range secrets {
		derived := hmac.New(sha256.New, s)
		derived.Write([]byte("ironvip heartbeat 1"))
		out = append(out, hmac.New(sha256.New, derived.Sum(nil)))
	}
	return out
}

func sum(h hash.Hash, data []byte) []byte {
	h.Reset()
	h.Write(data)
	return h.Sum(nil)
}

// nameID identifies the receiver of a message.
func nameID(name string) uint64 {
	s := sha256.Sum256([]byte(name))
	return max(binary.BigEndian.Uint64(s[:]), 1)
}

// encode appends the message to b. The caller has made sure that it fits MaxSize: see room.
func (m *message) encode(b []byte, k keys) []byte {
	start := len(b)
	b = append(b, magic...)
	b = append(b, byte(m.flags), m.missed)
	b = binary.BigEndian.AppendUint16(b, m.weight)
	b = binary.BigEndian.AppendUint32(b, uint32(m.interval/time.Microsecond))
	for _, v := range [...]uint64{m.epoch, m.seq, m.to, m.echoEpoch, m.echoSeq, uint64(m.uptime / time.Millisecond), m.config, m.number, m.digest, m.acked, m.base, m.upto} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = append(b, byte(len(m.name)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.claims)))
	b = append(b, m.name...)
	for _, c := range m.claims {
		b = appendClaim(b, c)
	}
	return append(b, sum(k[0], b[start:])...)
}

// Bits of a claim's first byte.
const (
	claimV6 = 1 << iota
	claimOwned
	claimStandby
	claimPriority // a byte with the priority follows; else it is announce.DefaultPriority
	claimMoved    // 4 bytes with Policy.Moved follow
	claimPinned
)

// kindOf returns a claim's first byte. There is one form of each claim.
func kindOf(c announce.Claim) (kind byte) {
	if c.Addr.Is6() {
		kind |= claimV6
	}
	if c.Owned {
		kind |= claimOwned
	}
	if c.Policy.Standby {
		kind |= claimStandby
	}
	if c.Policy.Above != 0 {
		kind |= claimPriority
	}
	if c.Policy.Moved != 0 {
		kind |= claimMoved
	}
	if c.Policy.Pinned {
		kind |= claimPinned
	}
	return kind
}

func appendClaim(b []byte, c announce.Claim) []byte {
	kind := kindOf(c)
	b = append(append(b, kind, byte(min(c.Services, announce.MaxServices))), c.Addr.AsSlice()...)
	if kind&claimPriority != 0 {
		b = append(b, byte(c.Policy.Priority()))
	}
	if kind&claimMoved != 0 {
		b = binary.BigEndian.AppendUint32(b, c.Policy.Moved)
	}
	return b
}

func claimSize(c announce.Claim) int {
	size := 2 + c.Addr.BitLen()/8
	if c.Policy.Above != 0 {
		size++
	}
	if c.Policy.Moved != 0 {
		size += 4
	}
	return size
}

// room returns how many bytes of claims a message of a host can have.
func room(name string) int { return MaxSize - headerSize - len(name) - macSize }

// decode authenticates and parses a message. It keeps no part of b.
func decode(b []byte, k keys) (*message, error) {
	if len(b) < headerSize+1+macSize || len(b) > MaxSize || string(b[:len(magic)]) != magic {
		return nil, errMalformed
	}
	body, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	genuine := false
	for _, key := range k {
		genuine = genuine || hmac.Equal(sum(key, body), mac)
	}
	if !genuine {
		return nil, errForged
	}
	m := &message{
		flags: flags(body[4]), missed: body[5], weight: binary.BigEndian.Uint16(body[6:]),
		interval: time.Duration(binary.BigEndian.Uint32(body[8:])) * time.Microsecond,
	}
	at := 12
	var uptime uint64
	for _, v := range [...]*uint64{&m.epoch, &m.seq, &m.to, &m.echoEpoch, &m.echoSeq, &uptime, &m.config, &m.number, &m.digest, &m.acked, &m.base, &m.upto} {
		*v = binary.BigEndian.Uint64(body[at:])
		at += 8
	}
	m.uptime = time.Duration(min(uptime, uint64(maxUptime/time.Millisecond))) * time.Millisecond
	length, count := int(body[at]), int(binary.BigEndian.Uint16(body[at+1:]))
	rest := body[headerSize:]
	if length == 0 || length > maxName || len(rest) < length || m.flags&^knownFlags != 0 || m.epoch == 0 || m.missed == 0 || m.interval == 0 || m.weight == 0 ||
		m.upto < m.base || m.upto > m.number || count*claimMin > len(rest) {
		return nil, errMalformed
	}
	m.name = string(rest[:length])
	if !utf8.ValidString(m.name) {
		return nil, errMalformed
	}
	var ok bool
	if m.claims, ok = decodeClaims(rest[length:], count); !ok {
		return nil, errMalformed
	}
	return m, nil
}

const maxUptime = 100 * 365 * 24 * time.Hour

func decodeClaims(b []byte, count int) (out []announce.Claim, ok bool) {
	if count > 0 {
		out = make([]announce.Claim, 0, count)
	}
	for range count {
		if len(b) < claimMin {
			return nil, false
		}
		kind, size := b[0], 4
		if kind&claimV6 != 0 {
			size = 16
		}
		whole := 2 + size
		if kind&claimPriority != 0 {
			whole++
		}
		if kind&claimMoved != 0 {
			whole += 4
		}
		if len(b) < whole {
			return nil, false
		}
		addr, _ := netip.AddrFromSlice(b[2 : 2+size])
		if addr.Is4In6() || addr.IsUnspecified() || addr.IsMulticast() {
			return nil, false
		}
		c := announce.Claim{Addr: addr, Services: int(b[1]), Owned: kind&claimOwned != 0,
			Policy: announce.Policy{Standby: kind&claimStandby != 0, Pinned: kind&claimPinned != 0}}
		if kind&claimPriority != 0 {
			c.Policy.Above = int16(b[2+size]) - announce.DefaultPriority
		}
		if kind&claimMoved != 0 {
			c.Policy.Moved = binary.BigEndian.Uint32(b[whole-4:])
		}
		if kindOf(c) != kind || c.IsEmpty() && c.Policy != (announce.Policy{}) {
			return nil, false
		}
		out = append(out, c)
		b = b[whole:]
	}
	return out, len(b) == 0
}
