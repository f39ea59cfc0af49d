package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/need"
)

// Some tests need their own process, with another user or other mounts. They run this test binary
// again, with the name of one of these functions.
const childEnv = "IRONVIP_STATE_CHILD"

var children = map[string]func(dir string) error{
	"unprivileged": asAnotherUser,
	"full disk":    onAFullDisk,
}

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childEnv)]; ok {
		if err := child(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func runChild(t *testing.T, name, dir string, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", dir)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	expect.Succeed(t, err, "%s", out)
}

func TestDirectoryOfAnotherUser(t *testing.T) {
	need.Root(t)
	runChild(t, "unprivileged", t.TempDir(), nil)
}

func asAnotherUser(dir string) error {
	readable, own := filepath.Join(dir, "readable"), filepath.Join(dir, "own")
	for _, d := range []string{readable, own} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chown(own, 65534, 65534); err != nil {
		return err
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{filepath.Join(readable, "theirs.db"), filepath.Join(own, "restored.db")} {
		db, err := Open(name)
		if err != nil {
			return err
		}
		if err := db.Close(); err != nil {
			return err
		}
	}
	if err := syscall.Setgid(65534); err != nil {
		return err
	}
	if err := syscall.Setuid(65534); err != nil {
		return err
	}
	for _, name := range []string{"new.db", "theirs.db", "sub/new.db"} {
		_, err := Open(filepath.Join(readable, name))
		var known *Error
		if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &known) || !strings.Contains(known.Hint, "state_dir") {
			return fmt.Errorf("%s: %v", name, err)
		}
	}
	db, err := Open(filepath.Join(own, "restored.db"))
	if err != nil {
		return err
	}
	return db.Close()
}

// On a full file system, writes fail with ErrUnavailable and acknowledged values remain. When there
// is space again, the same DB continues to work.
func TestFullDisk(t *testing.T) {
	need.Root(t)
	runChild(t, "full disk", t.TempDir(), &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS})
}

func onAFullDisk(dir string) error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	filler := filepath.Join(dir, "filler")
	fill := func() error {
		f, err := os.Create(filler)
		if err != nil {
			return err
		}
		defer f.Close()
		for {
			if _, err := f.Write(make([]byte, 4096)); errors.Is(err, syscall.ENOSPC) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}

	// A disk that is full from the start leaves no incomplete file behind.
	path := filepath.Join(dir, "ironvip.db")
	if err := fill(); err != nil {
		return err
	}
	if _, err := Open(path); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("open on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	db, err := Open(path)
	if err != nil {
		return fmt.Errorf("open once there is room: %w", err)
	}

	b := NewBucket[thing](db, "things")
	acknowledged := map[string]bool{}
	put := func(key string) error {
		err := b.Put(key, thing{Name: strings.Repeat("x", 1_000)})
		if err == nil {
			acknowledged[key] = true
		}
		return err
	}
	for i := range 20 {
		if err := put(fmt.Sprintf("early-%d", i)); err != nil {
			return err
		}
	}
	if err := fill(); err != nil {
		return err
	}
	failures := 0
	for i := range 200 {
		err := put(fmt.Sprintf("full-%d", i))
		if err == nil {
			continue // it used pages that it already had
		}
		failures++
		var known *Error
		if !errors.Is(err, ErrUnavailable) || !errors.As(err, &known) || !strings.Contains(known.Message, "disk is full") {
			return fmt.Errorf("put on a full disk: %w", err)
		}
	}
	if failures == 0 {
		return errors.New("the disk was never full")
	}
	if err := db.Failing(); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("while writes fail, Failing returns %v", err)
	}
	check := func(db *DB) error {
		all, err := NewBucket[thing](db, "things").All()
		if err != nil {
			return err
		}
		if len(all) != len(acknowledged) {
			return fmt.Errorf("%d values are there, %d were acknowledged", len(all), len(acknowledged))
		}
		for key := range acknowledged {
			if _, ok := all[key]; !ok {
				return fmt.Errorf("%s was acknowledged and is not there", key)
			}
		}
		return nil
	}
	if err := check(db); err != nil {
		return fmt.Errorf("full: %w", err)
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	if err := db.Failing(); err != nil {
		return fmt.Errorf("with room again, Failing returns %w", err)
	}
	for i := range 20 {
		if err := put(fmt.Sprintf("later-%d", i)); err != nil {
			return fmt.Errorf("with room again: %w", err)
		}
	}
	if err := db.Close(); err != nil {
		return err
	}
	if db, err = Open(path); err != nil {
		return fmt.Errorf("reopen: %w", err)
	}
	defer db.Close()
	return check(db)
}
