package filter

import "github.com/ironvip/ironvip/vip"

// MasqueradeBit is the bit of the packet mark that marks packets for masquerading while they pass through this host. These
// programs don't use it: kube-proxy (0x4000, 0x8000), CNI's port mapping (0x2000), AWS' CNI (0x80), Cilium (0xf00 and the
// upper half) and Tailscale (0xff0000).
const MasqueradeBit = 0x1000

// Marks use only bits of markMask, and always one of the upper byte. They share no bit with
// kube-proxy (0xc000), CNI's port mapping (0x2000), AWS' CNI (0x80), Tailscale (0xff0000)
// and the bit for masquerading. The highest bit tells the marks of probes from those of
// frontends, so that one rule matches all of the former.
const (
	markMask       = 0xff00007f
	probeBit       = 0x80000000
	MarkCount      = 127 << 7
	ProbeMarkCount = 128 << 7
)

// MarkAt returns mark number i of frontends, from 0 to MarkCount-1.
func MarkAt(i uint32) uint32 { return (i>>7+1)<<24 | i&0x7f }

func IndexOfMark(m uint32) uint32 { return (m>>24-1)<<7 | m&0x7f }

func IsMark(m uint32) bool { return m&^markMask == 0 && m>>24 != 0 && m&probeBit == 0 }

// ProbeMarkAt returns mark number i of probes, from 0 to ProbeMarkCount-1.
func ProbeMarkAt(i uint32) uint32 { return probeBit | i>>7<<24 | i&0x7f }

func IndexOfProbeMark(m uint32) uint32 { return m&^probeBit>>24<<7 | m&0x7f }

func IsProbeMark(m uint32) bool { return m&(probeBit|^uint32(markMask)) == probeBit }

// ByMark reports whether a frontend's service is one by mark. Frontends of real servers
// have no service.
func ByMark(k vip.FrontendKey) bool { return k.Ranged() || k.Audience != vip.Everyone }
