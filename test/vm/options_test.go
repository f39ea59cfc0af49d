//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadTestFlags(t *testing.T) {
	for _, tc := range []struct {
		name, in, args string
		timeout        time.Duration
		files, dirs    string
	}{
		{name: "nothing", timeout: -1},
		{name: "as go test calls it", in: "-test.paniconexit0 -test.testlogfile=/t/log -test.timeout=10m0s -test.v=true",
			args: "-test.paniconexit0 -test.timeout=10m0s -test.v=true", timeout: 10 * time.Minute},
		{name: "no limit", in: "-test.timeout 0", args: "-test.timeout 0"},
		{name: "coverage", in: "-test.coverprofile=/t/c.out -test.gocoverdir=/t/d", timeout: -1,
			args: "-test.coverprofile=/t/c.out -test.gocoverdir=/t/d", files: "/t/c.out", dirs: "/t/d"},
		{name: "output folder given last", in: "-test.cpuprofile=cpu.out --test.memprofile mem.out -test.outputdir=/o", timeout: -1,
			args: "-test.cpuprofile=cpu.out --test.memprofile mem.out -test.outputdir=/o", files: "/o/cpu.out /o/mem.out"},
		{name: "relative", in: "-test.trace=t.out", args: "-test.trace=t.out", timeout: -1, files: "/here/t.out"},
		{name: "the program's own", in: "-x -timeout=3s -- -coverprofile=c", args: "-x -timeout=3s -- -coverprofile=c", timeout: -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tf := readTestFlags(strings.Fields(tc.in), "/here")
			if got := strings.Join(tf.args, " "); got != tc.args {
				t.Errorf("args: got %q, want %q", got, tc.args)
			}
			if tf.timeout != tc.timeout {
				t.Errorf("timeout: got %v, want %v", tf.timeout, tc.timeout)
			}
			if got := strings.Join(tf.files, " "); got != tc.files {
				t.Errorf("files: got %q, want %q", got, tc.files)
			}
			if got := strings.Join(tf.dirs, " "); got != tc.dirs {
				t.Errorf("dirs: got %q, want %q", got, tc.dirs)
			}
		})
	}
}

func TestParseOptions(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, args string
		env        []string
		check      func(*options) any
		want       any
	}{
		{"defaults", "/bin/x", nil,
			func(o *options) any { return fmt.Sprint(o.mem, o.cpus, o.timeout, o.bootTimeout, o.verbose) }, "0 1 10m0s 1m0s false"},
		{"environment", "/bin/x", []string{"IRONVIP_VM_MEM=1G", "IRONVIP_VM_CPUS=2", "IRONVIP_VM_TIMEOUT=3s", "IRONVIP_VM_VERBOSE=1"},
			func(o *options) any { return fmt.Sprint(o.mem, o.cpus, o.timeout, o.verbose) }, "1024 2 3s true"},
		{"flags win", "-mem 768 -cpus 3 -timeout 0 /bin/x", []string{"IRONVIP_VM_MEM=1G", "IRONVIP_VM_CPUS=2", "IRONVIP_VM_TIMEOUT=3s"},
			func(o *options) any { return fmt.Sprint(o.mem, o.cpus, o.timeout) }, "768 3 0s"},
		{"instructions", "/bin/x", []string{"IRONVIP_VM_ICOUNT=1"}, func(o *options) any { return o.icount }, true},
		{"the test's timeout and slack", "/bin/x.test -test.timeout=1m", nil, func(o *options) any { return o.timeout }, time.Minute + testSlack},
		{"the test has none", "/bin/x.test -test.timeout=0s", nil, func(o *options) any { return o.timeout }, time.Duration(0)},
		{"own timeout wins", "-timeout 5s /bin/x.test -test.timeout=1m", nil, func(o *options) any { return o.timeout }, 5 * time.Second},
		{"program flags are the program's", "-- /bin/x -mem 1G", nil, func(o *options) any { return strings.Join(o.args, " ") }, "/bin/x -mem 1G"},
		{"relative program", "./x", nil, func(o *options) any { return o.args[0] }, filepath.Join(here, "x")},
		{"files", "/bin/x", []string{"IRONVIP_VM_FILES=/a:/b,/c:/d"}, func(o *options) any { return fmt.Sprint(o.files) }, "[{/a /b} {/c /d}]"},
		{"modules and programs", "-modules ipip,tun -programs tc /bin/x", nil,
			func(o *options) any { return fmt.Sprint(o.modules, o.programs) }, "[ipip tun] [tc]"},
		{"nothing of the host's is reached", "/bin/x", []string{"IRONVIP_VM_HOST=1.2.3.4"},
			func(o *options) any {
				return fmt.Sprint(o.reach, strings.Contains(fmt.Sprint(o.env), "IRONVIP_VM_HOST"))
			}, "[] false"},
		{"ports of the host's", "/bin/x", []string{"IRONVIP_VM_REACH=20001,65535"},
			func(o *options) any {
				return fmt.Sprint(o.reach, slices.Contains(o.env, "IRONVIP_VM_HOST="+reachAddr))
			}, "[20001 65535] true"},
		{"coverage folder", "/bin/x", []string{"GOCOVERDIR=cov"},
			func(o *options) any {
				return fmt.Sprint(o.collect, o.outDirs, slices.Contains(o.env, "GOCOVERDIR="+here+"/cov"))
			}, fmt.Sprintf("[%s/cov] [%s/cov] true", here, here)},
		{"what passes to the guest", "/bin/x", []string{"IRONVIP_A=b=c", "GODEBUG=x=1", "HOME=/home/me", "SECRET=1", "GOFLAGS=-mod=mod", "PATH=/mine", "IRONVIP_VM=0"},
			func(o *options) any {
				return strings.Join(slices.DeleteFunc(o.env, func(s string) bool { return strings.HasPrefix(s, "PWD=") }), " ")
			},
			"GODEBUG=x=1 HOME=/root IRONVIP_A=b=c IRONVIP_VM=1 LANG=C PATH=" + guestPath + " TERM=dumb TMPDIR=/tmp USER=root"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, err := parseOptions(strings.Fields(tc.args), tc.env)
			if err != nil {
				t.Fatal(err)
			}
			if got := tc.check(o); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for _, args := range []string{
		"", "-cpus 0 /bin/x", "-cpus two /bin/x", "-mem 12 /bin/x", "-mem lots /bin/x", "-mem -5G /bin/x", "-mem 99999999999999G /bin/x", "-timeout 5 /bin/x",
		"-boot-timeout 0s /bin/x", "-boot-timeout soon /bin/x",
		"-files a:/b /bin/x", "-files /a:b /bin/x", "-files /a /bin/x", "-nonsense /bin/x",
		"-reach 0 /bin/x", "-reach 65536 /bin/x", "-reach 127.0.0.1:80 /bin/x", "-reach 80,80 /bin/x", "-reach http /bin/x",
	} {
		if _, err := parseOptions(strings.Fields(args), nil); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("%q: got %v, want an error", args, err)
		}
	}
}

func TestMemory(t *testing.T) {
	for _, tc := range []struct{ mem, image, want int }{
		{0, 14, 512}, {0, 64, 512}, {0, 164, 712}, {256, 14, 256}, {256, 64, 256}, {256, 65, 0}, {2048, 900, 2048},
	} {
		o := &options{mem: tc.mem, args: []string{"/bin/x"}}
		got, err := o.memory(int64(tc.image) << 20)
		if got != tc.want || (err != nil) != (tc.want == 0) {
			t.Errorf("-mem %d, image %d MiB: got %d, %v; want %d", tc.mem, tc.image, got, err, tc.want)
		}
	}
}
