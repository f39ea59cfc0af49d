//go:build system && long

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// patroni is the configuration of Patroni on a host: a name, its address, etcd, and a folder.
const patroni = `scope: recipe
name: %[1]s
restapi: {listen: "0.0.0.0:8008", connect_address: "%[2]s:8008"}
etcd3: {hosts: "%[3]s:2379"}
bootstrap:
  dcs: {ttl: 20, loop_wait: 1, retry_timeout: 3}
  initdb: [{encoding: UTF8}, no-sync]
  pg_hba: ["local all all trust", "host all all 10.78.0.0/24 trust", "host replication all 10.78.0.0/24 trust"]
postgresql:
  listen: "*:5432"
  connect_address: "%[2]s:5432"
  data_dir: %[4]s/data
  bin_dir: /usr/lib/postgresql/15/bin
  pgpass: %[4]s/pgpass
  authentication: {superuser: {username: postgres, password: x}, replication: {username: replicator, password: x}}
  parameters: {unix_socket_directories: %[4]s, fsync: "off"}
`

// Patroni and PostgreSQL, from Debian: clients write at one address through a switchover, and when the primary stops. Another
// address has the standby.
// Slow: PostgreSQL is made twice, and Patroni takes steps of a second.
func TestPatroni(t *testing.T) {
	t.Parallel()
	need.Program(t, "patroni")
	l := prepareLab(t, 2)
	store := l.Join("etcd")
	at := fmt.Sprintf("http://%s:2379", store.Addr4)
	etcd := process.New(need.Server(t, "etcd"), filepath.Join(t.TempDir(), "log"), store, "--data-dir="+t.TempDir(), "--unsafe-no-fsync",
		"--listen-client-urls="+at, "--advertise-client-urls="+at, "--listen-peer-urls=http://127.0.0.1:2380")
	t.Cleanup(etcd.Kill)
	must.Succeed(t, etcd.Start())

	p := readPage(t)
	conf := map[*host]string{}
	programs := map[*host]*process.Process{}
	for _, h := range l.hosts {
		dir := must.Get(os.MkdirTemp("", "patroni"))(t)
		t.Cleanup(func() { os.RemoveAll(dir) })
		conf[h] = filepath.Join(dir, "patroni.yml")
		must.Succeed(t, os.WriteFile(conf[h], fmt.Appendf(nil, patroni, h.Name, h.Addr4, store.Addr4, dir), 0o644))
		l.client.Run("chown", "-R", "postgres:", dir)
		program := process.New("/usr/bin/setpriv", filepath.Join(h.dir, "patroni.log"), h.Node, "--reuid=postgres", "--regid=postgres", "--clear-groups", "patroni", conf[h])
		programs[h] = program
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: the end of Patroni's log:\n%s", h.Name, program.LogEnd(4000))
			}
			if program.Running() {
				_ = program.Stop()
			}
			text, _ := os.ReadFile(filepath.Join(dir, "data/postmaster.pid"))
			first, _, _ := strings.Cut(string(text), "\n")
			if pid, err := strconv.Atoi(first); err == nil { // Patroni was killed, and left it
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		must.Succeed(t, program.Start())
		l.follow(h, p, "postgres.toml", patient)
		h.start()
	}
	writes, reads := netip.MustParseAddr("10.78.0.211"), netip.MustParseAddr("10.78.0.212")
	sql := func(vip netip.Addr, text string) (string, error) {
		out, err := l.client.Output("psql", fmt.Sprintf("host=%s user=postgres password=x dbname=postgres connect_timeout=3", vip), "--no-psqlrc", "-qtAc", text)
		return strings.TrimSpace(out), err
	}
	await := func(vip netip.Addr, text, want string) {
		t.Helper()
		wait.For(t, fmt.Sprintf("%s at %s", text, vip), func() error {
			got, err := sql(vip, text)
			if err == nil && got != want {
				err = errors.New(got)
			}
			return err
		})
	}
	owner := func() *host {
		all := must.Get(l.hosts[0].announcements())(t)
		for _, h := range l.hosts {
			if h.Name == all[writes].Owner {
				return h
			}
		}
		t.Fatalf("nobody has %s: %+v", writes, all[writes])
		return nil
	}
	await(writes, "select pg_is_in_recovery()", "f")
	must.Get(sql(writes, "create table t (n int); insert into t values (1)"))(t)
	const onStandby = "select count(*) from t where pg_is_in_recovery()"
	await(reads, onStandby, "1")

	first := owner()
	second := l.hosts[0]
	if second == first {
		second = l.hosts[1]
	}
	second.Run("patronictl", "-c", conf[second], "switchover", "--leader", first.Name, "--candidate", second.Name, "--force")
	l.awaitFloating(second, writes)
	await(writes, "insert into t values (2) returning n", "2")
	await(reads, onStandby, "2")

	must.Succeed(t, programs[second].Stop())
	l.awaitFloating(first, writes)
	await(writes, "select pg_is_in_recovery()", "f")
	await(writes, "select count(*) from t", "2")
	l.awaitFloating(nil, reads)
}

// Three real servers of the API: one after the other ends, and the VIP is where one is left. On every host, the address for the
// hosts themselves works meanwhile.
// Slow: three times kube-apiserver.
func TestThreeControlPlanes(t *testing.T) {
	t.Parallel()
	servers := map[*host]*process.Process{}
	l, cluster, at := newControlPlane(t, func(h *host, c *kubetest.Cluster) { servers[h] = c.Join(t, h.Node, h.Addr4) })
	everywhere := func() {
		t.Helper()
		awaitGet(t, l.client, at(apiVIP), "ok")
		for _, h := range l.hosts {
			awaitGet(t, h.Node, at(apiLocal), "ok")
		}
	}
	a, b, c := l.hosts[0], l.hosts[1], l.hosts[2]
	l.awaitFloating(a, apiVIP)
	for _, h := range []*host{b, c} {
		awaitGet(t, h.Node, at(apiVIP), "ok") // its own
	}
	everywhere()
	servers[b].Kill()
	cluster.API.Kill(t)
	l.awaitFloating(c, apiVIP)
	everywhere()
	cluster.API.Start(t)
	l.awaitFloating(a, apiVIP)
	servers[c].Kill()
	everywhere()
}
