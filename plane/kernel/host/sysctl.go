package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Setting is the wanted value of one sysctl below net.
type Setting struct {
	Key, Value string // "ipv4/vs/conntrack"
	Why        string
	Optional   bool // a kernel without this sysctl is fine
	AtLeast    bool // Value is a number, and a larger one is fine. Only the operator sets it
}

// Remembered is the setting with which connection tracking remembers idle TCP connections for some time.
func Remembered(idle time.Duration) Setting {
	return Setting{Key: "netfilter/nf_conntrack_tcp_timeout_established", Value: strconv.Itoa(int(idle.Seconds())), Optional: true, AtLeast: true,
		Why: "the longest idle_timeout of a service"}
}

// Fits reports whether the setting has the value that is wanted.
func (w Setting) Fits(have string) bool {
	if w.AtLeast {
		n, err := strconv.Atoi(have)
		least, failed := strconv.Atoi(w.Value)
		return err == nil && failed == nil && n >= least
	}
	return have == w.Value
}

// Sysctls reads and writes sysctls of the calling thread's network namespace.
type Sysctls struct{ Root string }

const ProcSysNet = "/proc/sys/net"

// Check compares a setting with the kernel's value.
func (s Sysctls) Check(w Setting) Finding {
	f := Finding{Name: "sysctl " + SysctlName(w.Key), OK: true, Detail: w.Value}
	have, err := os.ReadFile(filepath.Join(s.Root, w.Key))
	switch {
	case errors.Is(err, fs.ErrNotExist) && w.Optional:
		f.Detail = "this kernel has no such setting"
		return f
	case err != nil:
		f.OK, f.Detail = false, fmt.Sprintf("can't be read: %v", errors.Unwrap(err))
	case !w.Fits(string(bytes.TrimSpace(have))):
		f.OK, f.Detail = false, fmt.Sprintf("is %s, needs %s: %s", bytes.TrimSpace(have), w.Value, w.Why)
	}
	if !f.OK {
		f.Remedy = fmt.Sprintf("sysctl -w %s=%s", SysctlName(w.Key), w.Value)
	}
	return f
}

// CheckAll checks the settings of a dataplane before the agent sets them.
func (s Sysctls) CheckAll(settings []Setting) (out []Finding) {
	for _, w := range settings {
		f := s.Check(w)
		if !f.OK {
			f.Detail += "; the agent sets it if it may"
		}
		out = append(out, f)
	}
	return out
}

// Set sets the sysctl if it has another value, and returns the result.
func (s Sysctls) Set(w Setting) Finding {
	f := s.Check(w)
	if f.OK || w.AtLeast {
		return f
	}
	if err := s.write(w); err != nil {
		f.Detail += fmt.Sprintf(" (and can't be set: %v)", errors.Unwrap(err))
		return f
	}
	return s.Check(w)
}

func (s Sysctls) write(w Setting) error {
	file, err := os.OpenFile(filepath.Join(s.Root, w.Key), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(w.Value)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

func SysctlName(key string) string { return "net." + strings.ReplaceAll(key, "/", ".") }

// Tunables are the sysctls: Sysctls, or a fake of them.
type Tunables interface {
	Check(w Setting) Finding
	Set(w Setting) Finding
}
