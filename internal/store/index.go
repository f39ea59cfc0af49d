package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"go.etcd.io/bbolt"
)

// The index is a bucket with an entry for each other bucket: the number of its values and the sum
// of their checksums. Every write updates it in the same transaction, so that Open detects a file
// that lost values or has older ones. Its name sorts first, so a damaged root page loses other
// buckets before the index.
const indexName = "\x00index"

// format is the version of the file's format, under formatKey of the index. Version 1 had no
// index.
const (
	format    = 2
	formatKey = "\x00format"
)

// tally is an index entry.
type tally struct{ Count, Sum uint64 }

// add counts a stored value. A nil value counts as none.
func (t *tally) add(stored []byte) {
	if len(stored) >= sumSize {
		t.Count++
		t.Sum += mix(binary.BigEndian.Uint32(stored))
	}
}

// remove reverses add.
func (t *tally) remove(stored []byte) {
	if len(stored) >= sumSize {
		t.Count--
		t.Sum -= mix(binary.BigEndian.Uint32(stored))
	}
}

// mix is the finalizer of splitmix64. A CRC is linear, so a plain sum of checksums often remains
// the same when many values change in the same way.
func mix(sum uint32) uint64 {
	x := uint64(sum) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// setFormat writes the index of a new file.
func setFormat(tx *bbolt.Tx) error {
	index, err := tx.CreateBucket([]byte(indexName))
	if err != nil {
		return err
	}
	return putIndex(index, formatKey, format)
}

func putIndex(index *bbolt.Bucket, key string, entry any) error {
	stored, err := seal(key, entry)
	if err != nil {
		return err
	}
	return index.Put([]byte(key), stored)
}

// contents is the result of reading a whole file.
type contents struct {
	tallies map[string]tally // of each bucket
	bad     []string         // values with a wrong checksum
}

// readContents reads every value and compares the buckets with the index. It costs O(values).
func readContents(bolt *bbolt.DB) (c contents, err error) {
	c.tallies = map[string]tally{}
	indexed := map[string]tally{}
	err = bolt.View(func(tx *bbolt.Tx) error {
		index := tx.Bucket([]byte(indexName))
		if index == nil {
			return errors.New("its index of buckets is lost")
		}
		var version int
		if err := unseal(formatKey, index.Get([]byte(formatKey)), &version); err != nil {
			return fmt.Errorf("its format version is %w", err)
		}
		if version != format {
			return fmt.Errorf("its format has version %d, and this ironvip reads version %d", version, format)
		}
		return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
			if bucket == nil {
				return fmt.Errorf("%q should be a bucket", name)
			}
			if string(name) == indexName {
				return bucket.ForEach(func(k, v []byte) error {
					var t tally
					if string(k) == formatKey {
						return nil
					}
					if err := unseal(string(k), v, &t); err != nil {
						return fmt.Errorf("the index entry %q is %w", k, err)
					}
					indexed[string(k)] = t
					return nil
				})
			}
			return c.read(string(name), bucket)
		})
	})
	if err != nil {
		return c, err
	}
	if len(c.bad) > 0 { // bad checksums have no meaning, so only the counts are compared
		return c, sameCounts(indexed, c.tallies)
	}
	if !maps.Equal(indexed, c.tallies) {
		return c, cmp.Or(sameCounts(indexed, c.tallies), errors.New("it has other values than were written last"))
	}
	return c, nil
}

// read tallies one bucket. It also checks that each key is found in its order.
func (c *contents) read(name string, bucket *bbolt.Bucket) error {
	var t tally
	if err := bucket.ForEach(func(k, v []byte) error {
		if !bytes.Equal(bucket.Get(k), v) {
			return fmt.Errorf("%s %q is out of order", name, k)
		}
		t.add(v)
		if len(v) < sumSize || binary.BigEndian.Uint32(v) != checksum(string(k), v[sumSize:]) {
			c.bad = append(c.bad, fmt.Sprintf("%s %q", name, k))
		}
		return nil
	}); err != nil {
		return err
	}
	c.tallies[name] = t
	return nil
}

func sameCounts(indexed, have map[string]tally) error {
	for name, want := range indexed {
		if got := have[name].Count; got != want.Count {
			return fmt.Errorf("%s has %d values of %d", name, got, want.Count)
		}
	}
	for name := range have {
		if _, known := indexed[name]; !known {
			return fmt.Errorf("bucket %q is not in the index", name)
		}
	}
	return nil
}
