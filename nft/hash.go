package nft

import (
	"encoding/binary"
	"math/bits"
)

// jhash is the hash function of the nftables expression of that name (the kernel's jhash), scaled
// to 0 up to n-1 as there. The rules and this function must agree on a service's shard.
func jhash(key []byte, seed, n uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(key[i:]) }
	for ; len(key) > 12; key = key[12:] {
		a, b, c = a+word(0), b+word(4), c+word(8)
		a = (a - c) ^ bits.RotateLeft32(c, 4)
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, 6)
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, 8)
		b += a
		a = (a - c) ^ bits.RotateLeft32(c, 16)
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, 19)
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, 4)
		b += a
	}
	// The keys are whole words.
	if len(key) >= 12 {
		c += word(8)
	}
	if len(key) >= 8 {
		b += word(4)
	}
	if len(key) >= 4 {
		a += word(0)
		c = (c ^ b) - bits.RotateLeft32(b, 14)
		a = (a ^ c) - bits.RotateLeft32(c, 11)
		b = (b ^ a) - bits.RotateLeft32(a, 25)
		c = (c ^ b) - bits.RotateLeft32(b, 16)
		a = (a ^ c) - bits.RotateLeft32(c, 4)
		b = (b ^ a) - bits.RotateLeft32(a, 14)
		c = (c ^ b) - bits.RotateLeft32(b, 24)
	}
	return uint32(uint64(c) * uint64(n) >> 32)
}
