package treelog

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Digest stands for all entries of a folder: the exclusive or of their hashes, so that a change
// costs two hashes.
type Digest uint64

// Flip adds an entry to the digest, or removes it.
func (d *Digest) Flip(path string, index uint64) {
	var room [8 + 128]byte
	text := binary.BigEndian.AppendUint64(room[:0], index)
	*d ^= Digest(xxhash.Sum64(append(text, path...)))
}

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, binary.BigEndian.AppendUint64(nil, uint64(d))), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	raw, err := hex.DecodeString(string(text))
	if err != nil || len(raw) != 8 {
		return fmt.Errorf("digest invalid: %.40q", text)
	}
	*d = Digest(binary.BigEndian.Uint64(raw))
	return nil
}
