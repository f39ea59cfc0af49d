//go:build linux

package main

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options describes one run: the runner's settings and the program. Each setting is a flag or, for
// use with go test -exec, an environment variable. The flag has priority.
type options struct {
	mem         int // MiB
	cpus        int
	icount      bool          // the guest's clock counts its instructions, one in a nanosecond
	timeout     time.Duration // of the whole run; 0: none
	bootTimeout time.Duration // of the first boot; each repeated boot has twice the time of the one before
	cache       string        // the directory of setup.sh with vmlinux and modules
	verbose     bool          // prints the console and times
	programs    []string      // host programs to ship, by name or path
	files       []hostFile
	modules     []string // in addition to baseModules
	root        string   // a folder with a Debian root; its systemd is pid 1 of the guest. "": the guest has only what is shipped
	reach       []uint16 // ports of the host's loopback for the guest; none: no network
	args        []string // the program and its arguments
	env         []string // the guest program's
	dir         string   // working directory, the same in the guest
	collect     []string // result files of the program: absolute files, and all of outDirs
	outDirs     []string // directories to create before it starts
}

// hostFile is a file or directory to copy; both paths are absolute.
type hostFile struct{ host, guest string }

const (
	defaultTimeout     = 10 * time.Minute
	defaultBootTimeout = time.Minute // a boot takes 2 s, and about 10 s on a busy machine
	// testSlack is the time that the runner waits after the test binary's -test.timeout, at which
	// the binary prints its goroutines. go test kills its child one minute after that timeout, so
	// it must be less.
	testSlack = 40 * time.Second
	guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// witnesses are in every image, for tests that check the kernel with independent tools.
var witnesses = []string{"ipvsadm", "nft", "ip", "conntrack", "ipset"}

// goVariables are passed to the guest, with all variables that begin with IRONVIP_. GOMAXPROCS is
// -cpus by default.
var goVariables = []string{"GOCOVERDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK", "TZ"}

func parseOptions(args, environ []string) (*options, error) {
	env := map[string]string{}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	fs := flag.NewFlagSet("vmrun", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller prints the error
	mem := fs.String("mem", env["IRONVIP_VM_MEM"], "memory, such as 768M or 2G; IRONVIP_VM_MEM (default 512M, 1G for -race binaries, and more for large images)")
	cpus := fs.String("cpus", env["IRONVIP_VM_CPUS"], "processors; IRONVIP_VM_CPUS (default 1)")
	icount := fs.Bool("icount", env["IRONVIP_VM_ICOUNT"] != "" && env["IRONVIP_VM_ICOUNT"] != "0", "make the guest's clock count its instructions, one in a nanosecond, so that times repeat on any host; IRONVIP_VM_ICOUNT")
	timeout := fs.String("timeout", env["IRONVIP_VM_TIMEOUT"], "kill the VM after this time, 0 for never; IRONVIP_VM_TIMEOUT (default: -test.timeout and some slack, else 10m)")
	bootTimeout := fs.String("boot-timeout", cmp.Or(env["IRONVIP_VM_BOOT_TIMEOUT"], defaultBootTimeout.String()), "boot again, with twice the time, if the program has not started after this time; IRONVIP_VM_BOOT_TIMEOUT")
	cache := fs.String("cache", env["IRONVIP_VM_CACHE"], "folder with the kernel; IRONVIP_VM_CACHE (default: \"current\" next to vmrun)")
	programs := fs.String("programs", env["IRONVIP_VM_PROGRAMS"], "more programs to ship with their libraries, besides "+strings.Join(witnesses, ", ")+"; comma-separated; IRONVIP_VM_PROGRAMS")
	files := fs.String("files", env["IRONVIP_VM_FILES"], "files and folders to ship: /host/path:/guest/path, comma-separated; IRONVIP_VM_FILES")
	modules := fs.String("modules", env["IRONVIP_VM_MODULES"], "more kernel modules to load, comma-separated; IRONVIP_VM_MODULES")
	reach := fs.String("reach", env["IRONVIP_VM_REACH"], "TCP ports of the host's 127.0.0.1 that the guest reaches, comma-separated, as ports of "+reachAddr+"; IRONVIP_VM_REACH (default: none, and no network)")
	root := fs.String("root", env["IRONVIP_VM_ROOT"], "folder with a root file system, such as that of test/debian.sh, whose systemd runs the program in a unit; IRONVIP_VM_ROOT (default: a guest without systemd)")
	verbose := fs.Bool("v", env["IRONVIP_VM_VERBOSE"] != "" && env["IRONVIP_VM_VERBOSE"] != "0", "show the guest's console and the time spent; IRONVIP_VM_VERBOSE")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(os.Stdout)
		fmt.Println("usage: vmrun [flags] [--] program [argument ...]\n" +
			"or:    go test -exec \"/path/to/vmrun [flags]\" [packages]\n\nflags, and the environment variable for each:")
		fs.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w (-h lists the flags)", err)
	}
	if fs.NArg() == 0 {
		return nil, errors.New("no program to run (-h lists the flags)")
	}

	o := &options{verbose: *verbose, programs: list(*programs), modules: list(*modules), cpus: 1, icount: *icount}
	var err error
	if o.dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(fs.Arg(0))
	if err != nil {
		return nil, err
	}
	tf := readTestFlags(fs.Args()[1:], o.dir)
	o.args = append([]string{program}, tf.args...)
	o.outDirs = tf.dirs
	if d := env["GOCOVERDIR"]; d != "" {
		env["GOCOVERDIR"] = absIn(o.dir, d)
		o.outDirs = append(o.outDirs, env["GOCOVERDIR"])
	}
	o.collect = append(tf.files, o.outDirs...)

	if o.cache = *cache; o.cache == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		o.cache = filepath.Join(filepath.Dir(self), "current")
	}
	if o.mem, err = parseMem(*mem); err != nil {
		return nil, err
	}
	if *cpus != "" {
		if o.cpus, err = strconv.Atoi(*cpus); err != nil || o.cpus < 1 || o.cpus > 16 {
			return nil, fmt.Errorf("-cpus %q: want a number from 1 to 16", *cpus)
		}
	}
	switch {
	case *timeout != "":
		if o.timeout, err = time.ParseDuration(*timeout); err != nil {
			return nil, fmt.Errorf("-timeout: %w", err)
		}
	case tf.timeout == 0: // 0 means no limit
	case tf.timeout > 0:
		o.timeout = tf.timeout + testSlack
	default:
		o.timeout = defaultTimeout
	}
	if o.bootTimeout, err = time.ParseDuration(*bootTimeout); err != nil || o.bootTimeout <= 0 {
		return nil, fmt.Errorf("-boot-timeout %q: want a time above zero, such as 90s", *bootTimeout)
	}
	for _, pair := range list(*files) {
		host, guest, ok := strings.Cut(pair, ":")
		if !ok || !filepath.IsAbs(host) || !filepath.IsAbs(guest) {
			// Relative paths are ambiguous: go test runs the runner in the package's directory, not
			// in the caller's.
			return nil, fmt.Errorf("-files %q: want /host/path:/guest/path, both absolute", pair)
		}
		o.files = append(o.files, hostFile{host, guest})
	}
	if o.reach, err = parseReach(*reach); err != nil {
		return nil, err
	}
	if *root != "" {
		o.root = absIn(o.dir, *root)
	}
	o.env = guestEnv(env, o)
	return o, nil
}

func guestEnv(env map[string]string, o *options) []string {
	out := []string{"PATH=" + guestPath, "HOME=/root", "USER=root", "LANG=C", "TERM=dumb", "TMPDIR=/tmp", "PWD=" + o.dir}
	for k, v := range env {
		if strings.HasPrefix(k, "IRONVIP_") && k != "IRONVIP_VM" && k != "IRONVIP_VM_HOST" || slices.Contains(goVariables, k) {
			out = append(out, k+"="+v)
		}
	}
	out = append(out, "IRONVIP_VM=1") // tests detect the VM by it
	if len(o.reach) > 0 {
		out = append(out, "IRONVIP_VM_HOST="+reachAddr)
	}
	slices.Sort(out)
	return out
}

// parseMem reads a size in MiB: "512M", "1G", "768". An empty string is 0.
func parseMem(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	digits, unit := strings.ToUpper(s), 1
	if d, ok := strings.CutSuffix(digits, "G"); ok {
		digits, unit = d, 1024
	} else {
		digits = strings.TrimSuffix(digits, "M")
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > 64<<10 || n*unit < 128 || n*unit > 64<<10 {
		return 0, fmt.Errorf("-mem %q: want a size between 128M and 64G", s)
	}
	return n * unit, nil
}

// memory returns the VM's memory in MiB for an image of the given size. The kernel holds the image
// twice while it unpacks it, needs about 100 MiB itself, and limits files to half of the rest.
func (o *options) memory(image int64) (int, error) {
	mib := int(image >> 20)
	if o.mem != 0 {
		if need := 128 + 2*mib; o.mem < need {
			return 0, fmt.Errorf("-mem %dM is too little for an image of %d MiB: want %dM and more", o.mem, mib, need)
		}
		return o.mem, nil
	}
	base := 512
	if isRace(o.args[0]) {
		base = 1024
	}
	return base + 2*max(0, mib-64), nil
}

// isRace reports whether program is a Go binary built with -race.
func isRace(program string) bool {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-race" && s.Value == "true"
	})
}

// testFlags is the meaning of a test binary's arguments for the runner.
type testFlags struct {
	args    []string      // as given, without -test.testlogfile
	timeout time.Duration // -1 without one in the arguments
	files   []string      // result files of the test, absolute
	dirs    []string      // result directories of the test, absolute
}

var resultFlags = []string{
	"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace", "gocoverdir",
}

func readTestFlags(args []string, dir string) testFlags {
	tf := testFlags{timeout: -1}
	var relative []string // profiles, relative to -test.outputdir
	outputDir := dir
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, ok := strings.CutPrefix(arg, "-test.")
		if !ok {
			if name, ok = strings.CutPrefix(arg, "--test."); !ok {
				tf.args = append(tf.args, arg)
				continue
			}
		}
		name, value, ok := strings.Cut(name, "=")
		takesValue := name == "timeout" || name == "outputdir" || name == "testlogfile" || slices.Contains(resultFlags, name)
		if !takesValue {
			tf.args = append(tf.args, arg)
			continue
		}
		both := []string{arg}
		if !ok && i+1 < len(args) {
			i++
			value = args[i]
			both = append(both, value)
		}
		switch name {
		case "testlogfile":
			// go test caches a result by the files and variables in this log. The log doesn't
			// include the kernel. Without the log, a run in the VM is never taken from the cache.
			continue
		case "timeout":
			if d, err := time.ParseDuration(value); err == nil {
				tf.timeout = d
			}
		case "outputdir":
			outputDir = absIn(dir, value)
		case "gocoverdir":
			tf.dirs = append(tf.dirs, absIn(dir, value))
		default:
			relative = append(relative, value)
		}
		tf.args = append(tf.args, both...)
	}
	for _, f := range relative {
		tf.files = append(tf.files, absIn(outputDir, f))
	}
	return tf
}

func absIn(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
