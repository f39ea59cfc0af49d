package kubetest

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/wait"
)

// Loan is a running cluster for a test in another machine, for example test/vm's, that reaches only
// one port of this machine. The other machine's test accesses it through Borrow.
type Loan struct {
	Dir  string // a directory for the other machine
	Port uint16 // of this machine's 127.0.0.1, to be reachable from the other one
}

// loanFile in the directory is a terms; caFile and caKeyFile are the authority.
const (
	loanFile, caFile, caKeyFile = "loan.json", "ca.pem", "ca.key"
	// lentName is in the server's certificate, for every address of the server.
	lentName = "localhost"
)

type terms struct {
	API        uint16 // port
	ServerName string // in the API's certificate
}

// Lend makes the API of the cluster, which must be on 127.0.0.1, available to borrowers until the end
// of the test. A borrower with the directory has all permissions.
func (c *Cluster) Lend(t testing.TB) Loan {
	t.Helper()
	body, err := json.Marshal(terms{API: c.Addr.Port(), ServerName: lentName})
	must(t, "lend", err)
	dir := t.TempDir()
	must(t, "lend", os.WriteFile(filepath.Join(dir, loanFile), body, 0o600))
	c.authority.Write(t, filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile))
	return Loan{Dir: dir, Port: c.Addr.Port()}
}

// Borrow returns the cluster of a Loan, without its servers' processes. Dir is its directory on this
// machine, and host the lender's address as seen from the place.
func Borrow(t testing.TB, dir string, host netip.Addr, in Place) *Cluster {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(dir, loanFile))
	must(t, "borrow", err)
	var loan terms
	must(t, "borrow", json.Unmarshal(body, &loan))
	c := &Cluster{
		Addr: netip.AddrPortFrom(host, loan.API), CA: filepath.Join(dir, caFile),
		opts: Options{Addr: host, In: in}, resources: map[string]resource{},
		serverName: loan.ServerName,
		authority:  authority.Read(t, filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)),
	}
	c.URL = "https://" + c.Addr.String()
	c.connect(t)
	wait.Within(t, maxWait, "kubetest: the borrowed API ready", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), asking)
		defer cancel()
		return c.apiReady(ctx)
	})
	return c
}
