package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

const (
	version    = 1
	packetSize = 24 // without authentication (RFC 5880, 4.1)
)

// The bits of the second byte, below the state (RFC 5880, 4.1).
const (
	flagPoll  = 1 << 5
	flagFinal = 1 << 4
	flagAuth  = 1 << 2
	flagDem   = 1 << 1
	flagMulti = 1 << 0
)

// packet is a control packet.
type packet struct {
	state        State
	diag         Diag
	poll, final  bool
	demand       bool
	multiplier   uint8
	mine, yours  uint32 // discriminators of the sender and the receiver
	minTX, minRX time.Duration
}

// The reasons to discard a packet (RFC 5880, 6.8.6).
var (
	errShort         = errors.New("the packet is too short")
	errVersion       = errors.New("unknown version")
	errMultiplier    = errors.New("the detection multiplier is 0")
	errMultipoint    = errors.New("the multipoint bit is set")
	errDiscriminator = errors.New("the discriminator is 0")
	errAuth          = errors.New("authentication is not supported")
)

// append appends the packet in its wire format.
func (p packet) append(b []byte) []byte {
	flags := byte(p.state) << 6
	for _, f := range []struct {
		set bool
		bit byte
	}{{p.poll, flagPoll}, {p.final, flagFinal}, {p.demand, flagDem}} {
		if f.set {
			flags |= f.bit
		}
	}
	b = append(b, version<<5|byte(p.diag), flags, p.multiplier, packetSize)
	b = binary.BigEndian.AppendUint32(b, p.mine)
	b = binary.BigEndian.AppendUint32(b, p.yours)
	b = binary.BigEndian.AppendUint32(b, microseconds(p.minTX))
	b = binary.BigEndian.AppendUint32(b, microseconds(p.minRX))
	return binary.BigEndian.AppendUint32(b, 0) // no echo packets wanted
}

// parse reads a packet and checks what can be checked without a session.
func parse(b []byte) (p packet, err error) {
	if len(b) < packetSize || int(b[3]) < packetSize || int(b[3]) > len(b) {
		return p, errShort
	}
	if v := b[0] >> 5; v != version {
		return p, fmt.Errorf("%w %d", errVersion, v)
	}
	flags := b[1]
	p = packet{
		diag: Diag(b[0] & 31), state: State(flags >> 6), multiplier: b[2],
		poll: flags&flagPoll != 0, final: flags&flagFinal != 0, demand: flags&flagDem != 0,
		mine: binary.BigEndian.Uint32(b[4:]), yours: binary.BigEndian.Uint32(b[8:]),
		minTX: duration(binary.BigEndian.Uint32(b[12:])), minRX: duration(binary.BigEndian.Uint32(b[16:])),
	}
	switch {
	case p.multiplier == 0:
		err = errMultiplier
	case flags&flagMulti != 0:
		err = errMultipoint
	case p.mine == 0:
		err = errDiscriminator
	case flags&flagAuth != 0:
		err = errAuth
	case p.yours == 0 && p.state != Down && p.state != AdminDown:
		err = errDiscriminator
	}
	return p, err
}

func microseconds(d time.Duration) uint32 { return uint32(d / time.Microsecond) }

func duration(us uint32) time.Duration { return time.Duration(us) * time.Microsecond }
