package store

import (
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/ironvip/ironvip/internal/text"
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
			err = unreadable(path, r)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	// Shared: two who only look don't keep each other out.
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
