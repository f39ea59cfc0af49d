// Command scale starts the built agent with a fleet of services in files and the userspace proxy, and prints one table: the
// cost of the start, of a scrape, of idling, and of a start in which services share VIPs. The backends don't exist, and have
// no health checks.
//
//	make bench-scale SERVICES=100000 BACKENDS=10
//
// The VIPs are in 127.64.0.0/12. A temporary folder has the files and the agent's state; the command removes the folder.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var (
	binary   = flag.String("bin", "bin/ironvip", "the program to measure")
	services = flag.Int("services", 10_000, "number of services")
	backends = flag.Int("backends", 10, "backends of each service")
	perVIP   = flag.Int("share", 256, "services with one share_key in the second start; 0: no second start")
	idle     = flag.Duration("idle", 2*time.Minute, "how long to measure the idle agent, from 30 s after the start; 0: not at all")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run() error {
	a, err := start(1)
	if err != nil {
		return err
	}
	defer a.remove()
	fmt.Printf("| %d services x %d backends | |\n|---|---|\n", *services, *backends)
	fmt.Printf("| start: processor time | %.1f s |\n| start: wall time | %.1f s |\n", a.cpu.Seconds(), a.wall.Seconds())
	fmt.Printf("| resident when in sync | %d MB |\n", a.resident()/1e6)
	time.Sleep(30 * time.Second) // the cache of services is written, and the garbage of the start returned
	resident := a.resident()
	fmt.Printf("| resident 30 s later | %d MB |\n| for each backend | %d bytes |\n| peak resident | %d MB |\n", resident/1e6, resident/(*services**backends), a.memory("VmHWM:")/1e6)
	for _, name := range []string{"first", "second"} {
		before, began := a.processor(), time.Now()
		size, err := a.get("/metrics", nil)
		if err != nil {
			return err
		}
		fmt.Printf("| %s scrape | %d ms, %d ms of processor time, %d bytes |\n", name, time.Since(began).Milliseconds(), (a.processor() - before).Milliseconds(), size)
	}
	if *idle > 0 {
		before := a.processor()
		time.Sleep(*idle)
		fmt.Printf("| idle for %s, with resyncs | %.2f %% of a processor |\n", *idle, 100*float64(a.processor()-before)/float64(*idle))
		fmt.Printf("| resident afterwards | %d MB |\n", a.resident()/1e6)
	}
	if *perVIP > 0 {
		a.remove()
		b, err := start(*perVIP)
		if err != nil {
			return err
		}
		defer b.remove()
		fmt.Printf("| share_key, %d services each: wall time | %.1f s |\n| share_key: processor time | %.1f s |\n", *perVIP, b.wall.Seconds(), b.cpu.Seconds())
	}
	return nil
}

// agent is a running agent with its folder.
type agent struct {
	dir       string
	cmd       *exec.Cmd
	client    http.Client
	cpu, wall time.Duration // until everything was in sync
}

// start writes a fleet and runs an agent until everything is in sync. So many services share a VIP.
func start(share int) (a *agent, err error) {
	dir, err := os.MkdirTemp("", "ironvip-scale-")
	if err != nil {
		return nil, err
	}
	a = &agent{dir: dir, client: http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "sock"))
		},
	}}}
	defer func() {
		if err != nil {
			a.remove()
		}
	}()
	if err := a.write(share); err != nil {
		return nil, err
	}
	a.cmd = exec.Command(*binary, "agent", "--config", dir)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- a.cmd.Wait() }()
	for !a.inSync() {
		select {
		case err := <-ended:
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("the agent ended: %w\n%s", err, text)
		case <-time.After(50 * time.Millisecond):
		}
	}
	a.wall, a.cpu = time.Since(began), a.processor()
	return a, nil
}

// fileSize is about the size of a file of services; the agent reads up to 4 MiB.
const fileSize = 1 << 20

// write writes the configuration and the services.
func (a *agent) write(share int) error {
	config := fmt.Sprintf(`[node]
name = "scale"
state_dir = "%[1]s/state"
[api]
socket = "%[1]s/sock"
[dataplane]
mode = "proxy"
[[pool]]
name = "main"
cidrs = ["127.64.0.0/12"]
`, a.dir)
	if err := os.WriteFile(filepath.Join(a.dir, "ironvip.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	folder := filepath.Join(a.dir, "services.d")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	for i := range *services {
		fmt.Fprintf(&text, "[[service]]\nname = \"s%d\"\nhealth = { type = \"none\" }\nports = [ { port = %d, target_port = 8080 } ]\n", i, 8000+i%share)
		if share > 1 {
			fmt.Fprintf(&text, "share_key = \"k%d\"\n", i/share)
		}
		text.WriteString("backends = [\n")
		for n := range *backends {
			b := i**backends + n
			fmt.Fprintf(&text, "  { address = \"10.%d.%d.%d\" },\n", b>>16&255, b>>8&255, b&255)
		}
		text.WriteString("]\n")
		if text.Len() > fileSize || i == *services-1 {
			if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.toml", i)), text.Bytes(), 0o644); err != nil {
				return err
			}
			text.Reset()
		}
	}
	return nil
}

// get reads an answer of the agent into value, unless that is nil, and returns its size.
func (a *agent) get(path string, value any) (size int, err error) {
	answer, err := a.client.Get("http://ironvip" + path)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, answer.Status)
	}
	if err == nil && value != nil {
		err = json.Unmarshal(text, value)
	}
	return len(text), err
}

// inSync reports whether the dataplane has all services.
func (a *agent) inSync() bool {
	if _, err := a.get("/readyz", nil); err != nil {
		return false
	}
	var nodes struct {
		Items []struct {
			Frontends int
			Lag       int64 `json:"lag_ms"`
		}
	}
	_, err := a.get("/v1/nodes", &nodes)
	return err == nil && len(nodes.Items) == 1 && nodes.Items[0].Frontends == *services && nodes.Items[0].Lag == 0
}

// processor returns the processor time of the agent.
func (a *agent) processor() time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ
}

// resident returns the agent's resident memory in bytes.
func (a *agent) resident() int { return a.memory("VmRSS:") }

func (a *agent) memory(field string) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	_, rest, _ := bytes.Cut(status, []byte(field))
	var kib int
	_, _ = fmt.Sscan(string(rest), &kib)
	return kib << 10
}

// remove ends the agent and removes its folder.
func (a *agent) remove() {
	if a.cmd != nil && a.cmd.Process != nil {
		_ = a.cmd.Process.Kill()
	}
	_ = os.RemoveAll(a.dir)
}
