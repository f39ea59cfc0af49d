package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// lockTimeout is how long Open waits for the process that has the file. An agent that is being
// restarted may still be closing it.
const lockTimeout = 3 * time.Second

// Open opens the state file at path. It creates the file and its directory if they are missing. It
// waits up to 3 s for a process that has the file open, and then returns ErrLocked. For untrusted
// content it returns ErrDamaged and names the damage. An empty file is damaged too, because it had
// content once. Every error is an *Error. Open reads the whole file once, which takes a quarter of
// a second for 100,000 values.
func Open(path string) (*DB, error) { return open(path, lockTimeout) }

func open(path string, wait time.Duration) (db *DB, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, openError(path, err)
	}
	var file *os.File
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, unreadable(path, r)
		}
		if err != nil && file != nil {
			_ = release(file) // an error means that bbolt has done it
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))

	// bbolt locks the same open file again, which has no effect. The lock must be taken first,
	// because the file may be read only while no process writes it.
	file, err = os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err = create(path); err == nil {
			file, err = os.OpenFile(path, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return nil, openError(path, err)
	}
	if err := lock(file, syscall.LOCK_EX, wait); err != nil {
		return nil, openError(path, err)
	}
	bolt, c, err := openChecked(path, file, false)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = bolt.Close()
		return nil, openError(path, err)
	}
	return &DB{path: path, bolt: bolt, file: file, opened: info, tallies: c.tallies, failed: wake.New()}, nil
}

// create makes a new file under a temporary name and gives it its name when it is complete. A
// process that is killed meanwhile leaves no incomplete file there. A file that another process
// creates at the same time is equivalent.
func create(path string) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if err := giveToOwner(file, filepath.Dir(path)); err != nil {
		_ = release(file)
		return err
	}
	bolt, err := openBolt(path, file, false)
	if err != nil {
		_ = release(file)
		return err
	}
	if err := cmp.Or(bolt.Update(setFormat), bolt.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// giveToOwner gives a file that root creates to the owner of its folder, so that an agent with an account of its own can open
// what root has restored.
func giveToOwner(file *os.File, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	of := info.Sys().(*syscall.Stat_t)
	return file.Chown(int(of.Uid), int(of.Gid))
}

// openBolt opens a bbolt database on an open file.
func openBolt(path string, file *os.File, readOnly bool) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		ReadOnly:     readOnly,
		FreelistType: bbolt.FreelistMapType,
		OpenFile:     func(string, int, fs.FileMode) (*os.File, error) { return file, nil },
	})
}

// openChecked opens a bbolt database on a locked file, and checks all of its content.
func openChecked(path string, file *os.File, readOnly bool) (bolt *bbolt.DB, c contents, err error) {
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, c, openError(path, err)
	case !info.Mode().IsRegular():
		return nil, c, openError(path, fmt.Errorf("not a regular file but %s", info.Mode().Type()))
	case info.Size() == 0: // bbolt would initialize it as new
		return nil, c, damaged(path, "it is empty")
	}
	bolt, err = openBolt(path, file, readOnly)
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		return nil, c, damaged(path, "it has no valid header")
	}
	if err != nil {
		return nil, c, openError(path, err)
	}
	if err = walk(bolt, file); err == nil {
		c, err = readContents(bolt)
	}
	if err != nil {
		_ = bolt.Close()
		return nil, c, damaged(path, err.Error())
	}
	return bolt, c, nil
}

// unreadable describes a panic or a memory fault during a read of a damaged file.
func unreadable(path string, panicked any) error {
	return damaged(path, fmt.Sprintf("it is cut off, or pages are damaged: %v", panicked))
}

// lock takes the file's lock, LOCK_EX or LOCK_SH. It retries until wait has passed.
func lock(f *os.File, how int, wait time.Duration) error {
	for deadline := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock: %w", err)
		case !time.Now().Before(deadline):
			return ErrLocked
		}
	}
}

// release unlocks and closes a file. Closing alone would keep the lock while bbolt's memory map
// exists.
func release(f *os.File) error {
	if fd, err := f.SyscallConn(); err == nil {
		_ = fd.Control(func(fd uintptr) { _ = syscall.Flock(int(fd), syscall.LOCK_UN) })
	}
	return f.Close()
}

// syncDir makes the name of a new file durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func openError(path string, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	p := vip.Problem{Code: vip.CodeStore, Place: path, Message: "open the state file: " + err.Error()}
	switch {
	case errors.Is(err, ErrLocked):
		p.Message = "the state file is in use by another process"
		p.Hint = "another ironvip agent runs with this state_dir: stop it, or give this one its own"
	case errors.Is(err, syscall.EISDIR):
		p.Message = "the state file is a directory"
		p.Hint = "state_dir names the directory that holds ironvip.db: move this directory away"
	case errors.Is(err, syscall.ENOTDIR):
		p.Hint = "a part of the path is not a directory: check state_dir"
	case errors.Is(err, fs.ErrPermission):
		p.Hint = "run the agent as the user who owns state_dir, or set state_dir to a directory this user may write"
	case errors.Is(err, syscall.EROFS):
		p.Hint = "set state_dir to a directory on a writable file system"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		p.Message = "open the state file: the disk is full"
		p.Hint = "free some space on the disk of state_dir"
	}
	return &Error{Problem: p, Err: err}
}
