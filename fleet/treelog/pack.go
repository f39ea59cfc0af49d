package treelog

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"errors"

	"github.com/ironvip/ironvip/fleet/kv"
)

// Pack encodes the pairs of a snapshot.
func Pack(pairs []kv.Pair) []byte {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	if err := errors.Join(gob.NewEncoder(compressed).Encode(pairs), compressed.Close()); err != nil {
		panic("treelog: snapshot: " + err.Error()) // strings, numbers and bytes
	}
	return out.Bytes()
}

// Unpack decodes what Pack has encoded. The caller has checked that it is whole.
func Unpack(packed []byte) (pairs []kv.Pair, err error) {
	compressed, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	err = gob.NewDecoder(compressed).Decode(&pairs)
	return pairs, err
}
