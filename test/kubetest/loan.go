package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/authority"
)

// Loan is a running cluster for a test in another machine, for example test/vm's, that reaches only
// some ports of this machine. That test accesses it through Borrow.
type Loan struct {
	Dir   string   // a directory for the other machine
	Ports []uint16 // of this machine's 127.0.0.1, to be reachable from the other one
}

// loanFile in the directory is a terms; caFile and caKeyFile are the authority.
const (
	loanFile, caFile, caKeyFile = "loan.json", "ca.pem", "ca.key"
	// lentName is in the server's certificate, for every address of the server.
	lentName = "localhost"
)

type terms struct {
	API, Etcd, Control uint16 // ports
	ServerName         string // in the API's certificate
}

// Lend makes the cluster, which must be on 127.0.0.1, available to borrowers until the end of the
// test. A borrower with the directory has all permissions.
func (c *Cluster) Lend(t testing.TB) Loan {
	t.Helper()
	u, err := url.Parse(c.etcdURL)
	must(t, "etcd's address", err)
	etcd, err := strconv.ParseUint(u.Port(), 10, 16)
	must(t, "etcd's port", err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, "lend: listen", err)
	control := &http.Server{Handler: c.control(), ReadHeaderTimeout: maxWait}
	go control.Serve(l)
	t.Cleanup(func() { control.Close() })
	loan := terms{API: c.Addr.Port(), Etcd: uint16(etcd), Control: uint16(l.Addr().(*net.TCPAddr).Port), ServerName: lentName}
	body, err := json.Marshal(loan)
	must(t, "lend", err)
	dir := t.TempDir()
	must(t, "lend", os.WriteFile(filepath.Join(dir, loanFile), body, 0o600))
	c.authority.Write(t, filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile))
	return Loan{Dir: dir, Ports: []uint16{loan.API, loan.Etcd, loan.Control}}
}

// Borrow returns the cluster of a Loan. Dir is its directory on this machine, and host the lender's
// address as seen from the place. The borrower can stop, stall and start the servers. They don't
// end with the test.
func Borrow(t testing.TB, dir string, host netip.Addr, in Place) *Cluster {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(dir, loanFile))
	must(t, "borrow", err)
	var loan terms
	must(t, "borrow", json.Unmarshal(body, &loan))
	c := &Cluster{
		Addr: netip.AddrPortFrom(host, loan.API), CA: filepath.Join(dir, caFile),
		opts: Options{Addr: host, In: in}, resources: map[string]resource{},
		etcdURL:    "http://" + netip.AddrPortFrom(host, loan.Etcd).String(),
		serverName: loan.ServerName,
		authority:  authority.Read(t, filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)),
	}
	c.URL = "https://" + c.Addr.String()
	c.connect(t)
	at := "http://" + netip.AddrPortFrom(host, loan.Control).String()
	c.Etcd = &Server{name: "etcd", changed: func() {}, ready: c.etcdReady, proc: &elsewhere{client: c.plain, url: at + "/etcd"}}
	c.API = &Server{name: "kube-apiserver", changed: c.transport.CloseIdleConnections, ready: c.apiReady,
		proc: &elsewhere{client: c.plain, url: at + "/api"}}
	c.WaitReady(t)
	return c
}

// state is the state of a server's process after a command.
type state struct {
	Error   string
	Running bool
	Pid     int
	Ending  string
	Log     string
}

// control lets a borrower control the servers: POST /api/stall.
func (c *Cluster) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{server}/{what}", func(w http.ResponseWriter, r *http.Request) {
		s := map[string]*Server{"etcd": c.Etcd, "api": c.API}[r.PathValue("server")]
		if s == nil {
			http.NotFound(w, r)
			return
		}
		command := map[string]func() error{
			"start": s.proc.Start, "stop": s.proc.Stop, "pause": s.proc.Pause, "resume": s.proc.Resume,
			"kill": func() error { s.proc.Kill(); return nil }, "look": func() error { return nil },
		}[r.PathValue("what")]
		if command == nil {
			http.NotFound(w, r)
			return
		}
		var now state
		if err := command(); err != nil {
			now.Error = err.Error()
		}
		now.Running, now.Pid, now.Ending, now.Log = s.proc.Running(), s.proc.Pid(), s.proc.Ending(), s.Log()
		json.NewEncoder(w).Encode(now) // ignored: the client is gone
	})
	return mux
}

// elsewhere is a server's process in the lender's machine.
type elsewhere struct {
	client *http.Client
	url    string
}

// send sends a command to the lender and returns the state of the process after it. It is also an
// error if the lender can't be reached.
func (e *elsewhere) send(what string) (now state, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/"+what, bytes.NewReader(nil))
	if err != nil {
		return now, err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return now, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return now, fmt.Errorf("%s: %s", req.URL, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&now); err != nil {
		return now, err
	}
	if now.Error != "" {
		return now, errors.New(now.Error)
	}
	return now, nil
}

func (e *elsewhere) Start() error  { _, err := e.send("start"); return err }
func (e *elsewhere) Stop() error   { _, err := e.send("stop"); return err }
func (e *elsewhere) Pause() error  { _, err := e.send("pause"); return err }
func (e *elsewhere) Resume() error { _, err := e.send("resume"); return err }

// Kill ignores errors, because callers wait for its effect.
func (e *elsewhere) Kill() { e.send("kill") }

func (e *elsewhere) Running() bool { now, err := e.send("look"); return err == nil && now.Running }
func (e *elsewhere) Pid() int      { now, _ := e.send("look"); return now.Pid }

func (e *elsewhere) Ending() string {
	now, err := e.send("look")
	if err != nil {
		return err.Error()
	}
	return now.Ending
}

func (e *elsewhere) LogEnd(most int64) string {
	now, err := e.send("look")
	if err != nil {
		return err.Error()
	}
	return now.Log[max(0, len(now.Log)-int(most)):]
}
