package treelog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ironvip/ironvip/fleet/consulkv"
)

// A snapshot is a gzip stream of records: the length of the key, the key, the index, the length of
// the value, and the value. Numbers are in the variable-length encoding of encoding/binary.

const (
	maxPackedKey   = 4 << 10   // bytes
	maxPackedValue = 512 << 10 // bytes, Consul's own limit
	packedChunk    = 256       // pairs that are decoded together
)

// Pack encodes pairs.
func Pack(pairs []consulkv.Pair) []byte {
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		panic("treelog: snapshot: " + err.Error()) // the level is valid
	}
	var record []byte
	for _, p := range pairs {
		record = binary.AppendUvarint(record[:0], uint64(len(p.Key)))
		record = append(record, p.Key...)
		record = binary.AppendUvarint(record, p.Index)
		record = binary.AppendUvarint(record, uint64(len(p.Value)))
		_, _ = compressed.Write(append(record, p.Value...)) // a buffer accepts all
	}
	_ = compressed.Close()
	return out.Bytes()
}

// Unpack decodes pairs, and passes them to part in chunks, with the prefix before their keys.
func Unpack(packed []byte, prefix string, part func([]consulkv.Pair)) error {
	compressed, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	from := bufio.NewReader(compressed)
	for {
		pairs := make([]consulkv.Pair, 0, packedChunk)
		for len(pairs) < packedChunk {
			p, err := unpackPair(from, prefix)
			if errors.Is(err, io.EOF) {
				part(pairs)
				return nil
			}
			if err != nil {
				return err
			}
			pairs = append(pairs, p)
		}
		part(pairs)
	}
}

// unpackPair decodes one pair. The error is io.EOF after the last one.
func unpackPair(from *bufio.Reader, prefix string) (p consulkv.Pair, err error) {
	if _, err := from.Peek(1); err != nil {
		return p, err
	}
	key, err := unpackBytes(from, maxPackedKey)
	if err != nil {
		return p, err
	}
	p.Key = prefix + string(key)
	if p.Index, err = binary.ReadUvarint(from); err != nil {
		return p, fmt.Errorf("index: %w", noEOF(err))
	}
	p.Value, err = unpackBytes(from, maxPackedValue)
	return p, err
}

func unpackBytes(from *bufio.Reader, most uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(from)
	if err != nil {
		return nil, noEOF(err)
	}
	if n > most {
		return nil, fmt.Errorf("%d bytes, more than %d", n, most)
	}
	out := make([]byte, n)
	_, err = io.ReadFull(from, out)
	return out, noEOF(err)
}

// noEOF distinguishes an end within a pair from one after it.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
