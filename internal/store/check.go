package store

import (
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/ironvip/ironvip/internal/text"
)

// Check verifies the state file at path without changing it, and reads the whole file. It returns
// the error that Open would return, ErrDamaged also for an unreadable value, or fs.ErrNotExist for
// a missing file. If an agent has the file open, it returns ErrLocked at once, because that agent
// has verified the file. An agent that starts during the check waits.
func Check(path string) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return openError(path, err)
	}
	defer release(file)
	defer func() {
		if r := recover(); r != nil {
			err = unreadable(path, r)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	// A shared lock, so that concurrent checks don't exclude each other.
	if err := lock(file, syscall.LOCK_SH, 0); err != nil {
		return openError(path, err)
	}
	bolt, c, err := openChecked(path, file, true)
	if err != nil {
		return err
	}
	defer bolt.Close()
	if len(c.bad) > 0 {
		return damaged(path, fmt.Sprintf("%s can't be trusted, the first is %s", text.Plural(len(c.bad), "value"), c.bad[0]))
	}
	return nil
}
