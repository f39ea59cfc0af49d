package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Legacy is a filter table of iptables-legacy with rules or policies that drop packets. Which packets is not known.
type Legacy struct {
	Command string // of its family: "iptables-legacy"
	Drops   int    // rules and policies
}

// legacyFamily is where the kernel has the tables of a family, and the layout of a rule (struct ipt_entry, ip6t_entry).
type legacyFamily struct {
	command, names  string
	domain, level   int
	targetOffset    int // of the offset of the target, 16 bits; the offset of the next rule follows
	sizeOfRuleStart int
}

var legacyFamilies = []legacyFamily{
	{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.IPPROTO_IP, 88, 112},
	{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6, 140, 168},
}

// Of linux/netfilter_ipv4/ip_tables.h and x_tables.h; those of IPv6 have the same values.
const (
	getInfo, getEntries = 64, 65
	legacyTable         = "filter"
	tableNameSize       = 32
	infoSize            = 84 // struct ipt_getinfo
	sizeInInfo          = 80
	entriesStart        = 40 // in struct ipt_get_entries
	targetNameSize      = 29
	targetSize          = 32 // struct xt_entry_target
	verdictDrop         = -1
)

// FindLegacy returns the filter tables of iptables-legacy that drop packets, in the network namespace of the calling
// thread. It loads no module: it asks only for tables that the kernel already has.
func FindLegacy() (found []Legacy, err error) {
	for _, f := range legacyFamilies {
		names, e := os.ReadFile("/proc/thread-self/net/" + f.names)
		if errors.Is(e, fs.ErrNotExist) || e == nil && !slices.Contains(strings.Fields(string(names)), legacyTable) {
			continue
		}
		var drops int
		if e == nil {
			drops, e = f.drops()
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("read the rules of %s: %w", f.command, e))
		} else if drops > 0 {
			found = append(found, Legacy{f.command, drops})
		}
	}
	return found, err
}

// drops reads the table and counts what drops packets.
func (f legacyFamily) drops() (int, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info, legacyTable)
	if err := getsockopt(fd, f.level, getInfo, info); err != nil {
		return 0, err
	}
	size := binary.NativeEndian.Uint32(info[sizeInInfo:])
	table := make([]byte, entriesStart+int(size))
	copy(table, legacyTable)
	binary.NativeEndian.PutUint32(table[tableNameSize:], size)
	if err := getsockopt(fd, f.level, getEntries, table); err != nil { // EAGAIN: it has changed
		return 0, err
	}
	return f.count(table[entriesStart:])
}

var errLegacyRule = errors.New("a rule of unknown form")

// count counts the rules, and policies, that drop or reject packets.
func (f legacyFamily) count(rules []byte) (n int, err error) {
	for len(rules) > 0 {
		if len(rules) < f.sizeOfRuleStart {
			return n, errLegacyRule
		}
		target, next := int(binary.NativeEndian.Uint16(rules[f.targetOffset:])), int(binary.NativeEndian.Uint16(rules[f.targetOffset+2:]))
		if next < target+targetSize || next > len(rules) || target < f.sizeOfRuleStart {
			return n, errLegacyRule
		}
		t := rules[target:next]
		name, _, _ := bytes.Cut(t[2:2+targetNameSize], []byte{0})
		switch {
		case string(name) == "REJECT":
			n++
		case len(name) == 0 && len(t) >= targetSize+4 && int32(binary.NativeEndian.Uint32(t[targetSize:])) == verdictDrop:
			n++
		}
		rules = rules[next:]
	}
	return n, nil
}

func getsockopt(fd, level, name int, b []byte) error {
	size := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return nil
}
