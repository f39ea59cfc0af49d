package cli

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// residentFile returns how much of files is in this process's resident memory, in KiB.
func residentFile(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if !found || err != nil {
		t.Fatalf("no RssFile: %v", err)
	}
	return n
}

// The pages of the program are not resident afterwards, except those in use.
func TestUnmapImage(t *testing.T) {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for _, m := range cleanMappings(string(smaps), image) { // reading maps every page
		if _, err := io.Copy(io.Discard, io.NewSectionReader(memory, int64(m.start), int64(m.end-m.start))); err != nil {
			t.Fatal(err)
		}
	}
	before := residentFile(t)
	if err := unmapImage(); err != nil {
		t.Fatal(err)
	}
	if after := residentFile(t); after > before/2 {
		t.Errorf("%d KiB of files are resident, %d KiB before", after, before)
	}
}

func TestCleanMappings(t *testing.T) {
	const smaps = `00400000-01a00000 r-xp 00000000 fd:01 42                         /usr/local/bin/ironvip
Size:              22528 kB
Anonymous:             0 kB
01a00000-02000000 r--p 01600000 fd:01 42                         /usr/local/bin/ironvip
Anonymous:            16 kB
02000000-03000000 r--p 01c00000 fd:01 42                         /usr/local/bin/ironvip
Anonymous:             0 kB
03000000-03100000 rw-p 02c00000 fd:01 42                         /usr/local/bin/ironvip
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fd:01 43                 /usr/lib/libc.so.6
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x1a00000}, {0x2000000, 0x3000000}}
	if got := cleanMappings(smaps, "/usr/local/bin/ironvip"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
