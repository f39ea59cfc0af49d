package share

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/vip"
)

// Folder is the folder of the tree with the verdicts.
const Folder = "health"

const version = 1

// Verdict is what the probers of a target agree on: a row of the folder, with the target's Key. A
// prober that is not named finds the same.
type Verdict struct {
	Health vip.Health `json:"health"` // Unknown, Healthy or Unhealthy
	Since  int64      `json:"since"`  // when it became this, Unix milliseconds of the clock of By
	Reason string     `json:"reason,omitempty"`
	By     string     `json:"by,omitempty"` // the prober with the deciding vote
	// Against are probers that find the opposite: of Unknown, unhealthy.
	Against map[string]Vote `json:"against,omitempty"`
	// Without are probers that don't have the target, or can't probe it.
	Without []string `json:"without,omitempty"`
}

// Vote is what a prober finds that doesn't agree with the verdict.
type Vote struct {
	Since  int64  `json:"since"`
	Reason string `json:"reason,omitempty"`
}

// Row is a Verdict with its key.
type Row = fleet.Item[Verdict]

// Verdicts returns the folder's values. The tree has the Folder.
func Verdicts(t *fleet.Tree) *fleet.Collection[Verdict] {
	return fleet.NewCollection(t, Folder, version, checkVerdict)
}

func checkVerdict(_ string, v Verdict) error {
	switch {
	case v.Health != vip.Unknown && v.Health != vip.Healthy && v.Health != vip.Unhealthy:
		return fmt.Errorf("health %q is not a verdict", v.Health)
	case len(v.Reason) > maxReason:
		return errors.New("the reason is too long")
	}
	return nil
}

// maxReason bounds a reason, in bytes, with some more room than probe.Result has.
const maxReason = 512

// result returns the verdict as the result of a target.
func (v *Verdict) result(t probe.Target) probe.Result {
	r := probe.Result{Target: t, Health: v.Health, Since: vip.InstantOf(time.UnixMilli(v.Since)), Outcome: probe.OK, Origin: probe.Fleet}
	if v.Health == vip.Unhealthy {
		r.Outcome, r.Reason = probe.TimedOut, v.Reason
		if v.By != "" {
			r.Reason += ", found by " + v.By
		}
	}
	return r
}

// known reports whether there is a verdict.
func (v *Verdict) known() bool { return v != nil && v.Health != vip.Unknown }

// Key returns the key of a target in the folder: the address, the type, and a hash of the check and
// of the path, if there is one. It is the same on every host and in every release that knows the same fields, and costs about 2 us.
func Key(t probe.Target) string {
	c := t.Check()
	text, err := json.Marshal(checkText(c))
	if err != nil {
		panic("share: check: " + err.Error()) // strings and numbers
	}
	if p := t.Path(); !p.IsZero() {
		text = append(text, p.String()...)
	}
	sum := sha256.Sum256(text)
	return t.Addr.String() + "/" + c.Type.String() + "-" + hex.EncodeToString(sum[:8])
}

// checkText is a check as it is hashed. A field that is added must be omitted if it is zero:
// otherwise the keys of all targets change with the release.
type checkText struct {
	Type         vip.CheckType `json:"type,omitempty"`
	Port         uint16        `json:"-"` // in the address
	Interval     time.Duration `json:"interval,omitempty"`
	FastInterval time.Duration `json:"fast,omitempty"`
	Timeout      time.Duration `json:"timeout,omitempty"`
	Rise         uint8         `json:"rise,omitempty"`
	Fall         uint8         `json:"fall,omitempty"`
	Method       string        `json:"method,omitempty"`
	Path         string        `json:"path,omitempty"`
	Host         string        `json:"host,omitempty"`
	Status       string        `json:"status,omitempty"`
	Body         string        `json:"body,omitempty"`
	TLS          bool          `json:"tls,omitempty"`
	SkipVerify   bool          `json:"skip,omitempty"`
	Service      string        `json:"service,omitempty"`
	Send         string        `json:"send,omitempty"`
	Expect       string        `json:"expect,omitempty"`
	Command      string        `json:"command,omitempty"`
}
