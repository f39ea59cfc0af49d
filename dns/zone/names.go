package zone

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/vip"
)

// Kind says what a name is.
type Kind uint8

// The kinds. Between is a name that has no records and exists because there are names below it.
const (
	Between Kind = iota
	Reserved
	Canonical
	Short
	Hostname
	Port
	Address
)

var kinds = [...]string{"between", "reserved", "canonical", "short", "hostname", "port", "address"}

// String returns "canonical", "short" or "hostname", for example.
func (k Kind) String() string { return kinds[k] }

// root is the name of the root, and the others are the namespaces of addresses' names.
const (
	root     = "\x00"
	reverse4 = "\x07in-addr\x04arpa\x00"
	reverse6 = "\x03ip6\x04arpa\x00"
)

// eachName puts each name of a service into z.buf, the canonical one first, and calls f. The index is
// that of the hostname, port or VIP.
func (z *Zone) eachName(s *Service, f func(k Kind, i int)) {
	z.putCanonical(s.Key)
	f(Canonical, 0)
	if z.shortNames && s.Key.Namespace == vip.DefaultNamespace {
		z.putShort(s.Key)
		f(Short, 0)
	}
	for i, h := range s.Hostnames {
		if z.putHostname(h) {
			f(Hostname, i)
		}
	}
	for i := range s.Ports {
		if named(&s.Ports[i]) && z.putPort(s.Key, &s.Ports[i]) {
			f(Port, i)
		}
	}
	for i, a := range s.VIPs {
		if z.inPools(a) {
			z.putAddr(a)
			f(Address, i)
		}
	}
}

// isAlias reports whether a name without a dot at the end is a hostname or the short name of a
// service.
func (z *Zone) isAlias(s *Service, name string) bool {
	if slices.Contains(s.Hostnames, name) {
		return true
	}
	label, domain, _ := strings.Cut(name, ".")
	return z.shortNames && s.Key.Namespace == vip.DefaultNamespace && label == s.Key.Name && domain == z.domainText
}

// isShort reports whether a name in wire format is the short name of a service.
func (z *Zone) isShort(name string, k vip.ServiceKey) bool {
	label := 1 + int(name[0])
	return z.shortNames && k.Namespace == vip.DefaultNamespace && name[1:label] == k.Name && name[label:] == z.domain
}

func (z *Zone) putLabel(label string) {
	z.buf = append(append(z.buf, byte(len(label))), label...)
}

func (z *Zone) putCanonical(k vip.ServiceKey) {
	z.buf = z.buf[:0]
	z.appendCanonical(k)
}

func (z *Zone) appendCanonical(k vip.ServiceKey) {
	z.putLabel(k.Name)
	z.putLabel(k.Namespace)
	z.buf = append(z.buf, z.services...)
}

func (z *Zone) putShort(k vip.ServiceKey) {
	z.buf = z.buf[:0]
	z.putLabel(k.Name)
	z.buf = append(z.buf, z.domain...)
}

// putHostname reports whether the hostname is a name of several labels; validation has checked it.
func (z *Zone) putHostname(h string) bool {
	z.buf = z.buf[:0]
	labels := 0
	for rest := h; rest != ""; {
		label, after, _ := strings.Cut(rest, ".")
		if label == "" || len(label) > 63 {
			return false
		}
		z.putLabel(label)
		rest = after
		labels++
	}
	z.buf = append(z.buf, 0)
	return labels > 1 && len(z.buf) <= message.MaxName
}

// putPort reports whether the name of a port is short enough.
func (z *Zone) putPort(k vip.ServiceKey, p *vip.Port) bool {
	z.buf = z.buf[:0]
	z.buf = append(append(z.buf, byte(1+len(p.Name)), '_'), p.Name...)
	z.putLabel(protocolLabel(p.Protocol))
	z.appendCanonical(k)
	return len(z.buf) <= message.MaxName
}

func protocolLabel(p vip.Protocol) string {
	switch p {
	case vip.TCP:
		return "_tcp"
	case vip.UDP:
		return "_udp"
	}
	return "_" + p.String()
}

// named reports whether a port has an SRV record: one port with a name of its own, not "80/tcp".
// The label of the name has one more character.
func named(p *vip.Port) bool {
	if p.LastPort != 0 || p.Name == "" || len(p.Name) > 62 {
		return false
	}
	for i := range len(p.Name) {
		c := p.Name[i]
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

const digits = "0123456789abcdef"

func (z *Zone) putAddr(a netip.Addr) {
	z.buf = z.buf[:0]
	if a.Is4() {
		b := a.As4()
		for i := len(b) - 1; i >= 0; i-- {
			at := len(z.buf)
			z.buf = append(z.buf, 0)
			if b[i] >= 100 {
				z.buf = append(z.buf, '0'+b[i]/100)
			}
			if b[i] >= 10 {
				z.buf = append(z.buf, '0'+b[i]/10%10)
			}
			z.buf = append(z.buf, '0'+b[i]%10)
			z.buf[at] = byte(len(z.buf) - at - 1)
		}
		z.buf = append(z.buf, reverse4...)
		return
	}
	b := a.As16()
	for i := len(b) - 1; i >= 0; i-- {
		z.buf = append(z.buf, 1, digits[b[i]&0xf], 1, digits[b[i]>>4])
	}
	z.buf = append(z.buf, reverse6...)
}
