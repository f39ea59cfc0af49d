package bgptest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

// The types of attributes that Decode understands.
const (
	nextHop       = 3
	communities   = 8
	extended      = 16
	large         = 32
	mpReachNLRI   = 14
	mpUnreachNLRI = 15
)

// Update is the content of an UPDATE.
type Update struct {
	Announced, Withdrawn []netip.Prefix
	NextHop              netip.Addr
	Attributes           map[byte]string // by type: flags and value in hexadecimal
	Order                []byte          // of the types
}

// String shows the update as "+prefix" and "-prefix" with the communities of all kinds, "EOR 4" or "EOR 6".
func (u Update) String() string {
	var words []string
	for _, p := range u.Announced {
		words = append(words, "+"+p.String())
	}
	for _, p := range u.Withdrawn {
		words = append(words, "-"+p.String())
	}
	slices.Sort(words)
	for _, typ := range []byte{communities, extended, large} {
		if c, ok := u.Attributes[typ]; ok {
			words = append(words, c)
		}
	}
	switch {
	case len(words) > 0:
		return strings.Join(words, " ")
	case u.Attributes[mpUnreachNLRI] != "":
		return "EOR 6"
	}
	return "EOR 4"
}

// Decode reads a stream of UPDATE messages.
func Decode(t testing.TB, stream []byte) (all []Update) {
	t.Helper()
	r := bufio.NewReader(bytes.NewReader(stream))
	for {
		typ, body, err := message.Read(r)
		if err == io.EOF {
			return all
		}
		if err != nil || typ != message.TypeUpdate {
			t.Fatal(typ, err)
		}
		all = append(all, decode(t, body))
	}
}

func decode(t testing.TB, b []byte) Update {
	t.Helper()
	take := func(b *[]byte, n int) []byte {
		if n > len(*b) {
			t.Fatalf("%d bytes missing", n-len(*b))
		}
		head := (*b)[:n]
		*b = (*b)[n:]
		return head
	}
	size := func(b *[]byte) int { return int(binary.BigEndian.Uint16(take(b, 2))) }
	list := func(b []byte, v6 bool) (ps []netip.Prefix) {
		for len(b) > 0 {
			bits := int(take(&b, 1)[0])
			raw := make([]byte, 4)
			if v6 {
				raw = make([]byte, 16)
			}
			copy(raw, take(&b, (bits+7)/8))
			a, _ := netip.AddrFromSlice(raw)
			ps = append(ps, netip.PrefixFrom(a, bits))
		}
		return ps
	}
	u := Update{Attributes: map[byte]string{}}
	u.Withdrawn = list(take(&b, size(&b)), false)
	attributes := take(&b, size(&b))
	u.Announced = list(b, false)
	for len(attributes) > 0 {
		head := take(&attributes, 2)
		n := 0
		if head[0]&0x10 != 0 { // extended length
			n = size(&attributes)
		} else {
			n = int(take(&attributes, 1)[0])
		}
		value := take(&attributes, n)
		u.Order = append(u.Order, head[1])
		u.Attributes[head[1]] = fmt.Sprintf("%02x %x", head[0], value)
		switch head[1] {
		case nextHop:
			u.NextHop = netip.AddrFrom4([4]byte(value))
		case mpReachNLRI:
			v6 := take(&value, 3)[1] == 2
			u.NextHop, _ = netip.AddrFromSlice(take(&value, int(take(&value, 1)[0])))
			take(&value, 1)
			u.Announced = append(u.Announced, list(value, v6)...)
		case mpUnreachNLRI:
			v6 := take(&value, 3)[1] == 2
			u.Withdrawn = append(u.Withdrawn, list(value, v6)...)
		}
	}
	return u
}
