package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// lastPlane is the dataplane that this host runs, as recorded in the state file once it serves.
type lastPlane struct {
	Mode string `json:"mode"`
}

const lastPlaneKey = "last"

func planeNote(db *store.DB) *store.Bucket[lastPlane] {
	return store.NewBucket[lastPlane](db, "dataplane")
}

// notePlane records that the dataplane serves, unless it is the same as before. From then on, the one before leaves.
func (a *agent) notePlane() {
	now := lastPlane{a.plane().about.Mode}
	last, known, err := planeNote(a.stores.DB).Get(lastPlaneKey)
	if err == nil && known && slices.Contains(otherModes(now.Mode), last.Mode) {
		a.leavesSince(last.Mode)
	}
	if err == nil && last != now {
		err = planeNote(a.stores.DB).Put(lastPlaneKey, now)
	}
	if err != nil {
		a.log.Warn("dataplane in use not recorded: with mode auto, the next start may choose another", "err", err)
	}
	a.forgetLeaving(now.Mode)
}

// leavingNote has the times at which the dataplanes that leave were replaced, by mode.
func leavingNote(db *store.DB) *store.Bucket[time.Time] {
	return store.NewBucket[time.Time](db, "leaving dataplanes")
}

// leavesSince returns when another dataplane was replaced: now, or as recorded by an agent that has ended in between.
func (a *agent) leavesSince(mode string) time.Time {
	now := time.Now()
	since, known, err := leavingNote(a.stores.DB).Get(mode)
	if err == nil && known && !since.After(now) {
		return since
	}
	if err == nil {
		err = leavingNote(a.stores.DB).Put(mode, now)
	}
	if err != nil {
		a.log.Warn("change of the dataplane not recorded: after a restart, connections of the one before have longer", "dataplane", mode, "err", err)
	}
	return now
}

// ranBefore reports whether another dataplane may have something in the kernel, by the records.
func (a *agent) ranBefore(mode string) bool {
	last, known, err := planeNote(a.stores.DB).Get(lastPlaneKey)
	if err == nil && known && last.Mode == mode {
		return true
	}
	_, known, err = leavingNote(a.stores.DB).Get(mode)
	return err == nil && known
}

// forgetLeaving removes the record of a dataplane that has nothing left, or serves again.
func (a *agent) forgetLeaving(mode string) {
	if _, known, err := leavingNote(a.stores.DB).Get(mode); err == nil && !known {
		return
	}
	if err := leavingNote(a.stores.DB).Delete(mode); err != nil {
		a.log.Warn("record of an earlier dataplane not removed", "dataplane", mode, "err", err)
	}
}

func (a *agent) hardStopAfter() time.Duration {
	return time.Duration(a.config.get().Dataplane.HardStopAfter)
}

// checkMode returns what a dataplane needs of this host.
func checkMode(mode, role string) []host.Finding {
	return configs.DataplaneOf(mode).NeedsOf(role == configs.RoleRealServer)
}

// choice is the selection of a dataplane.
type choice struct {
	Mode, Why string
	Lacks     []host.Finding // required by those that are preferred and can't run
}

// chooseMode selects a dataplane and returns the reason. A configured mode that can't run is an error that names what is
// missing and the fix. Mode auto keeps the dataplane that the host ran before: another one may refuse services, and end
// connections. Without one, or if that can't run any more, it takes the first of preference that can.
func chooseMode(mode, role, before string, check func(mode string) []host.Finding) (choice, error) {
	if role == configs.RoleRealServer && mode == configs.ModeAuto {
		if found := check(configs.ModeIPVS); len(host.Missing(found)) > 0 {
			return choice{}, fmt.Errorf("dataplane.role = %q needs the ipvs dataplane, which can't work here\n%s\nhint: fix this; `ironvip doctor` shows everything", configs.RoleRealServer, lacks(found))
		}
		return choice{Mode: configs.ModeIPVS, Why: "a real server needs it"}, nil
	}
	if mode != configs.ModeAuto {
		if found := check(mode); len(host.Missing(found)) > 0 {
			return choice{}, fmt.Errorf("dataplane.mode = %q can't work here\n%s\nhint: fix this, or set dataplane.mode to \"auto\" or \"proxy\"; `ironvip doctor` shows everything", mode, lacks(found))
		}
		return choice{Mode: mode, Why: "the configuration asks for it"}, nil
	}
	if configs.DataplaneOf(before) == nil { // of another version
		before = ""
	}
	var out choice
	var reasons []string
	for _, k := range configs.Dataplanes {
		m := k.Mode
		found := check(m)
		missing := host.Err(found)
		switch {
		case missing == nil && out.Mode == "" && (before == "" || before == m):
			out.Mode = m
		case missing == nil && out.Mode == "" && before != "" && host.Err(check(before)) == nil:
			out.Mode = before
			reasons = append(reasons, fmt.Sprintf("this host ran it before; %[1]s can run, too: dataplane.mode = %[1]q selects it", m))
		case missing == nil && out.Mode == "":
			out.Mode = m
			reasons = append(reasons, fmt.Sprintf("%s, which this host ran before, can't run any more", before))
		case missing != nil && out.Mode == "":
			reasons = append(reasons, fmt.Sprintf("%s can't run: %s", m, firstLine(missing)))
			out.Lacks = append(out.Lacks, host.Missing(found)...)
		}
		if out.Mode != "" {
			break
		}
	}
	if out.Why = strings.Join(reasons, "; "); out.Why == "" {
		out.Why = "the kernel and this process's rights allow it"
	}
	return out, nil
}

// lacks returns a line for each finding that keeps a dataplane from running, with the fix.
func lacks(found []host.Finding) string {
	return text.Join(host.Missing(found), "\n", func(f host.Finding) string {
		line := "  " + host.Err([]host.Finding{f}).Error()
		if f.Remedy != "" {
			line += "     fix: " + f.Remedy
		}
		return line
	})
}
