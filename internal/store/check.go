package store

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"go.etcd.io/bbolt"
)

// Check says what is wrong with the state file at path, without changing it: what
// Open would say, ErrDamaged also for a value that can't be trusted, and
// fs.ErrNotExist where there is none. A file that an agent has open is ErrLocked
// at once; that agent has verified it. An agent that starts meanwhile waits. It
// reads the whole file.
func Check(path string) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return openError(path, err)
	}
	defer release(file)
	defer func() {
		if r := recover(); r != nil {
			err = damaged(path, fmt.Sprintf("%v", r))
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	// Shared: two who only look don't keep each other out.
	if err := lock(file, syscall.LOCK_SH, 0); err != nil {
		return openError(path, err)
	}
	if err := verifyFile(path, file); err != nil {
		return err
	}
	bolt, err := openBolt(path, file, true)
	if err != nil {
		return openError(path, err)
	}
	defer bolt.Close()
	if err := checkMarkers(bolt); err != nil {
		return damaged(path, err.Error())
	}
	if err := checkValues(bolt); err != nil {
		return damaged(path, err.Error())
	}
	return nil
}

// checkValues names the first value whose checksum isn't its own, and counts the
// others.
func checkValues(db *bbolt.DB) error {
	first, bad := "", 0
	err := db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
			return bucket.ForEach(func(k, raw []byte) error {
				key := string(k)
				if key == marker || len(raw) >= sumSize && binary.BigEndian.Uint32(raw) == checksum(key, raw[sumSize:]) {
					return nil
				}
				if bad++; bad == 1 {
					first = fmt.Sprintf("%s %q", name, key)
				}
				return nil
			})
		})
	})
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d values can't be trusted, the first is %s", bad, first)
	}
	return err
}
