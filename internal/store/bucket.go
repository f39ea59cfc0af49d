package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/vip"
)

// maxKey is bbolt's limit for a key, in bytes.
const maxKey = bbolt.MaxKeySize

// Bucket is a named set of values of one type, stored as JSON.
type Bucket[V any] struct {
	db   *DB
	name string
}

// NewBucket returns the bucket of that name. The first write creates it. Two buckets of one name
// share their values.
func NewBucket[V any](db *DB, name string) *Bucket[V] { return &Bucket[V]{db: db, name: name} }

// Tx collects the writes of one Batch.
type Tx[V any] struct {
	bucket string
	writes []write
	err    error
}

// Put sets the value at key. The key has 1 to 32768 bytes, and its first byte is not 0.
func (tx *Tx[V]) Put(key string, value V) {
	stored, err := seal(key, value)
	if err != nil {
		err = fmt.Errorf("write %s %q: %w", tx.bucket, key, err)
	}
	tx.add(key, stored, err)
}

// Delete removes the value at key, if there is one.
func (tx *Tx[V]) Delete(key string) { tx.add(key, nil, nil) }

func (tx *Tx[V]) add(key string, stored []byte, err error) {
	tx.err = cmp.Or(tx.err, checkKey(tx.bucket, key), err)
	tx.writes = append(tx.writes, write{tx.bucket, []byte(key), stored})
}

// Put stores the value at key durably. After an ErrUnavailable error the old value is still there.
func (b *Bucket[V]) Put(key string, value V) error {
	return b.Batch(func(tx *Tx[V]) { tx.Put(key, value) })
}

// Delete removes the value at key durably. A missing key is not an error.
func (b *Bucket[V]) Delete(key string) error {
	return b.Batch(func(tx *Tx[V]) { tx.Delete(key) })
}

// Batch applies the writes of fill, all or nothing, with one fsync.
func (b *Bucket[V]) Batch(fill func(tx *Tx[V])) error {
	tx := &Tx[V]{bucket: b.name}
	fill(tx)
	if tx.err != nil {
		return tx.err
	}
	// In the order of the pages: bbolt moves all later keys of a page for each new one, and a page has every new key until
	// the commit.
	slices.SortStableFunc(tx.writes, func(a, b write) int { return bytes.Compare(a.key, b.key) })
	return b.db.commit(tx.writes)
}

// Write sets the values of put and removes the keys in remove, all or nothing, with one fsync. No
// key may be in both.
func (b *Bucket[V]) Write(put map[string]V, remove []string) error {
	return b.Batch(func(tx *Tx[V]) {
		for key, value := range put {
			tx.Put(key, value)
		}
		for _, key := range remove {
			tx.Delete(key)
		}
	})
}

// Get returns the value at key and whether it exists.
func (b *Bucket[V]) Get(key string) (value V, ok bool, err error) {
	err = b.view(func(bucket *bbolt.Bucket) error {
		raw := bucket.Get([]byte(key))
		if raw == nil {
			return nil
		}
		if err := unseal(key, raw, &value); err != nil {
			return b.damaged(fmt.Sprintf("%q: %v", key, err))
		}
		ok = true
		return nil
	})
	return value, ok, err
}

// Keys returns the keys of all values, sorted, without decoding the values.
func (b *Bucket[V]) Keys() (keys []string, err error) {
	keys, _, err = b.sealed()
	return keys, err
}

// sealed returns the keys, sorted, and the stored forms of all values.
func (b *Bucket[V]) sealed() (keys []string, stored [][]byte, err error) {
	err = b.view(func(bucket *bbolt.Bucket) error {
		return bucket.ForEach(func(k, raw []byte) error {
			// A copy: a read error of the mapped file would end other goroutines.
			keys, stored = append(keys, string(k)), append(stored, bytes.Clone(raw))
			return nil
		})
	})
	return keys, stored, err
}

// All returns every value. It omits unreadable values and returns an *Error that is ErrDamaged and
// has their Keys.
func (b *Bucket[V]) All() (map[string]V, error) {
	keys, stored, err := b.sealed()
	values, errs := make([]V, len(keys)), make([]error, len(keys))
	parallel.All(len(keys), func(i int) bool {
		errs[i] = unseal(keys[i], stored[i], &values[i])
		return true
	})
	all := make(map[string]V, len(keys))
	var unreadable, bad []string
	for i, key := range keys {
		if errs[i] != nil {
			unreadable, bad = append(unreadable, key), append(bad, fmt.Sprintf("%q: %v", key, errs[i]))
		} else {
			all[key] = values[i]
		}
	}
	if err == nil && len(bad) > 0 {
		if more := len(bad) - 5; more > 0 {
			bad = append(bad[:5], fmt.Sprintf("and %d more", more))
		}
		damaged := b.damaged(strings.Join(bad, "; "))
		damaged.Keys, err = unreadable, damaged
	}
	return all, err
}

func (b *Bucket[V]) damaged(what string) *Error {
	return damaged(b.db.path, fmt.Sprintf("unreadable in %s: %s", b.name, what))
}

// view reads the bucket, if it exists.
func (b *Bucket[V]) view(read func(*bbolt.Bucket) error) error {
	err := b.db.guard(func() error {
		return b.db.bolt.View(func(tx *bbolt.Tx) error {
			if bucket := tx.Bucket([]byte(b.name)); bucket != nil {
				return read(bucket)
			}
			return nil
		})
	})
	var known *Error
	if err != nil && !errors.As(err, &known) {
		err = &Error{Problem: vip.Problem{
			Code: vip.CodeStore, Place: b.db.path, Message: fmt.Sprintf("read %s: %v", b.name, err),
		}, Err: err}
	}
	return err
}

// A stored value is the CRC-32C of key and JSON in big-endian order, followed by the JSON.
const sumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key string, text []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, text)
}

func checkKey(bucket, key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("write %s: a key has 1 to %d bytes, not %d", bucket, maxKey, len(key))
	}
	if key[0] == 0 {
		return fmt.Errorf("write %s: key %q starts with a zero byte", bucket, key)
	}
	return nil
}

// seal returns the stored form of a value.
func seal(key string, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, sumSize+len(text)), checksum(key, text)), text...), nil
}

// unseal decodes a stored value, if its checksum is correct.
func unseal(key string, stored []byte, into any) error {
	if len(stored) < sumSize {
		return errors.New("cut off")
	}
	text := stored[sumSize:]
	if binary.BigEndian.Uint32(stored) != checksum(key, text) {
		return errors.New("damaged: checksum differs")
	}
	return json.Unmarshal(text, into)
}
