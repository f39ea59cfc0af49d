//go:build system

package kubetest

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// A borrower has access to the whole cluster: objects, users, history and the servers themselves.
func TestALoanIsTheSameCluster(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	loan := c.Lend(t)
	b := Borrow(t, loan.Dir, netip.MustParseAddr("127.0.0.1"), nil)
	b.Apply(t, web)
	if s := get(t, c, webPath); s.Metadata.Annotations["a"] != "1" {
		t.Errorf("the lender has %+v", s)
	}
	if len(loan.Ports) != 3 || loan.Ports[0] != c.Addr.Port() {
		t.Errorf("ports %v, the API's is %d", loan.Ports, c.Addr.Port())
	}

	text, err := os.ReadFile(b.Kubeconfig(t, "admin", Masters))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct{ Cluster map[string]string }
	}
	if err := json.Unmarshal(text, &config); err != nil || config.Clusters[0].Cluster["tls-server-name"] != "localhost" {
		t.Errorf("%v\n%s", err, text)
	}

	if b.Etcd.Pid() != c.Etcd.Pid() || b.API.Pid() != c.API.Pid() || b.API.Pid() == b.Etcd.Pid() {
		t.Errorf("processes %d and %d, the lender's are %d and %d", b.Etcd.Pid(), b.API.Pid(), c.Etcd.Pid(), c.API.Pid())
	}
	b.API.Stall(t)
	if c.API.Running() || b.API.Running() || !b.Etcd.Running() {
		t.Error("the API is to be stalled, etcd isn't")
	}
	b.API.Resume(t)
	b.WaitReady(t)
	b.API.Kill(t)
	if c.API.Pid() != 0 || !strings.Contains(b.API.proc.Ending(), "killed") {
		t.Errorf("process %d: %s", c.API.Pid(), b.API.proc.Ending())
	}
	before := b.Compact(t)
	b.API.Start(t)
	b.API.WaitReady(t)
	if err := b.API.proc.Start(); err == nil || !strings.Contains(err.Error(), "it runs already") {
		t.Errorf("a second start: %v", err)
	}
	if now := get(t, b, webPath); before == 0 || now.Metadata.Annotations["a"] != "1" {
		t.Errorf("revision %d: %+v", before, now)
	}
	if b.API.Log() == "" {
		t.Error("no log")
	}
	b.API.Restart(t)
	if now := get(t, c, webPath); now.Spec.Type != "ClusterIP" {
		t.Errorf("after a restart: %+v", now)
	}
}
