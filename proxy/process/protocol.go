package process

import (
	"errors"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/vip"
)

// DefaultSocket is the socket of the proxy under systemd.
const DefaultSocket = "/run/ironvip-proxy/control.sock"

// Tables of a connection. The first one is the agent's.
const (
	TableHost    = "host"
	TableRun     = "run"
	TablePassive = "passive"
	TableEvents  = "log"
)

// Questions of an agent. A question without an argument has a bool.
const (
	AskConfigure   = "configure"   // Settings: Configured
	AskApply       = "apply"       // []Update: []Result
	AskActual      = "actual"      // uint64, the changes that the agent knows: Actual
	AskRetire      = "retire"      // time.Duration: bool
	AskReport      = "report"      // Report
	AskKeys        = "keys"        // []vip.FrontendKey
	AskConnections = "connections" // vip.FrontendKey: map[netip.AddrPort]int
	AskTotals      = "totals"      // map[vip.FrontendKey]reconcile.Traffic
	AskBreakdown   = "breakdown"   // vip.FrontendKey: Breakdown
	AskList        = "list"        // []vip.FrontendKey: []reconcile.Connection
)

// Settings are those of the proxy that only take effect without frontends.
type Settings struct{ SkLookup bool }

// Configured is what the proxy uses: other settings than those that were sent, if it has frontends.
type Configured struct {
	Entrance proxy.Entrance
	Settings Settings
}

// Run is one run of the process.
type Run struct{ Began int64 }

// Update is a changed frontend, or a removed one.
type Update struct {
	Key vip.FrontendKey
	New *vip.Frontend
}

// Actual is what the proxy has.
type Actual struct {
	Changes uint64         // of frontends in this run of the process, from 1 on
	All     []vip.Frontend // unless the agent knows this number of changes
	Damaged map[vip.FrontendKey][]string
}

// Result is the result of an Update: a problem, another error as text, or neither.
type Result struct {
	Problem *vip.Problem
	Text    string
}

func resultOf(err error) Result {
	if p, ok := errors.AsType[vip.Problem](err); ok {
		return Result{Problem: &p}
	}
	if err != nil {
		return Result{Text: err.Error()}
	}
	return Result{}
}

// Err returns the error.
func (r Result) Err() error {
	switch {
	case r.Problem != nil:
		return *r.Problem
	case r.Text != "":
		return errors.New(r.Text)
	}
	return nil
}

// Breakdown is that of a frontend, if the proxy has it.
type Breakdown struct {
	reconcile.Breakdown
	Found bool
}

// Report is the state of the proxy.
type Report struct {
	balance.Report
	Limit     uint64 // of the process's descriptors
	Frontends int64  // that it serves
	Draining  int64  // TCP connections of retired frontends
}
