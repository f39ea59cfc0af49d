package filter

import "github.com/ironvip/ironvip/vip"

// Marks use only bits of markMask, and always one of the upper byte. They share no bit with
// kube-proxy (0xc000), CNI's port mapping (0x2000), AWS' CNI (0x80), Tailscale (0xff0000)
// and the bit for masquerading.
const (
	markMask  = 0xff00007f
	MarkCount = 255 << 7
)

// MarkAt returns mark number i, from 0 to MarkCount-1.
func MarkAt(i uint32) uint32 { return (i>>7+1)<<24 | i&0x7f }

func IndexOfMark(m uint32) uint32 { return (m>>24-1)<<7 | m&0x7f }

func IsMark(m uint32) bool { return m&^markMask == 0 && m>>24 != 0 }

// ByMark reports whether a frontend's service is one by mark. Frontends of real servers
// have no service.
func ByMark(k vip.FrontendKey) bool { return k.Ranged() || k.Audience != vip.Everyone }
