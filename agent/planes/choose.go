package planes

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

// needs returns what a dataplane needs of this host.
func needs(mode, role string) []host.Finding {
	return configs.DataplaneOf(mode).NeedsOf(role == configs.RoleRealServer)
}

// Choice is the selection of a dataplane.
type Choice struct {
	Mode, Why string
	Lacks     []host.Finding // required by those that are preferred and can't run
}

// Choose selects a dataplane and returns the reason. A configured mode that can't run is an error that names what is
// missing and the fix. Mode auto keeps the dataplane that the host ran before, or "": another one may refuse services, and end
// connections. Without one, or if that can't run any more, it takes the first of preference that can.
func Choose(cfg *configs.Config, before string) (Choice, error) {
	role := cfg.Dataplane.Role
	return choose(cfg.Dataplane.Mode, role, before, func(mode string) []host.Finding { return needs(mode, role) })
}

func choose(mode, role, before string, check func(mode string) []host.Finding) (Choice, error) {
	if role == configs.RoleRealServer && mode == configs.ModeAuto {
		if found := check(configs.ModeIPVS); len(host.Missing(found)) > 0 {
			return Choice{}, fmt.Errorf("dataplane.role = %q needs the ipvs dataplane, which can't work here\n%s\nhint: fix this; `ironvip doctor` shows everything", configs.RoleRealServer, lacks(found))
		}
		return Choice{Mode: configs.ModeIPVS, Why: "a real server needs it"}, nil
	}
	if mode != configs.ModeAuto {
		if found := check(mode); len(host.Missing(found)) > 0 {
			return Choice{}, fmt.Errorf("dataplane.mode = %q can't work here\n%s\nhint: fix this, or set dataplane.mode to \"auto\" or \"proxy\"; `ironvip doctor` shows everything", mode, lacks(found))
		}
		return Choice{Mode: mode, Why: "the configuration asks for it"}, nil
	}
	if before == configs.ModeOff || configs.DataplaneOf(before) == nil { // auto chooses one, or it is of another version
		before = ""
	}
	var out Choice
	var reasons []string
	for _, k := range configs.Dataplanes {
		found := check(k.Mode)
		if missing := host.Err(found); missing != nil {
			reasons = append(reasons, fmt.Sprintf("%s can't run: %s", k.Mode, firstLine(missing)))
			for _, f := range host.Missing(found) {
				if !slices.Contains(out.Lacks, f) { // ipvs and nft share some
					out.Lacks = append(out.Lacks, f)
				}
			}
			continue
		}
		out.Mode = k.Mode
		switch {
		case before == "" || before == k.Mode:
		case host.Err(check(before)) == nil:
			out.Mode = before
			reasons = append(reasons, fmt.Sprintf("this host ran it before; %[1]s can run, too: dataplane.mode = %[1]q selects it", k.Mode))
		default:
			reasons = append(reasons, fmt.Sprintf("%s, which this host ran before, can't run any more", before))
		}
		break
	}
	if out.Why = strings.Join(reasons, "; "); out.Why == "" {
		out.Why = "the kernel and this process's rights allow it"
	}
	return out, nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
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

// servingRecord is the dataplane that this host runs, as recorded in the state file once it serves.
type servingRecord struct {
	Mode string `json:"mode"`
}

const servingKey = "last"

func (p *Planes) servingNote() *store.Bucket[servingRecord] {
	return store.NewBucket[servingRecord](p.o.DB, "dataplane")
}

// leavingNote has the times at which the dataplanes that leave were replaced, by mode.
func (p *Planes) leavingNote() *store.Bucket[time.Time] {
	return store.NewBucket[time.Time](p.o.DB, "leaving dataplanes")
}

// last returns the dataplane that served last on this host, or "".
func (p *Planes) last() (string, error) {
	last, _, err := p.servingNote().Get(servingKey)
	return last.Mode, err
}

// noteServing records that the dataplane serves, unless it is the same as before. From then on, the one before leaves.
func (p *Planes) noteServing() {
	now := p.Mode()
	last, err := p.last()
	if err == nil && slices.Contains(otherModes(now), last) {
		p.leavesSince(last)
	}
	if err == nil && last != now {
		err = p.servingNote().Put(servingKey, servingRecord{now})
	}
	if err != nil {
		p.o.Log.Warn("dataplane in use not recorded: with mode auto, the next start may choose another", "err", err)
	}
	p.forgetLeaving(now)
}

// leavesSince returns when another dataplane was replaced: now, or as recorded by an agent that has ended in between.
func (p *Planes) leavesSince(mode string) time.Time {
	now := time.Now()
	since, known, err := p.leavingNote().Get(mode)
	if err == nil && known && !since.After(now) {
		return since
	}
	if err == nil {
		err = p.leavingNote().Put(mode, now)
	}
	if err != nil {
		p.o.Log.Warn("change of the dataplane not recorded: after a restart, connections of the one before have longer", "dataplane", mode, "err", err)
	}
	return now
}

// ranBefore reports whether another dataplane may have something in the kernel, by the records.
func (p *Planes) ranBefore(mode string) bool {
	if last, err := p.last(); err == nil && last == mode {
		return true
	}
	_, known, err := p.leavingNote().Get(mode)
	return err == nil && known
}

// forgetLeaving removes the record of a dataplane that has nothing left, or serves again.
func (p *Planes) forgetLeaving(mode string) {
	if _, known, err := p.leavingNote().Get(mode); err == nil && !known {
		return
	}
	if err := p.leavingNote().Delete(mode); err != nil {
		p.o.Log.Warn("record of an earlier dataplane not removed", "dataplane", mode, "err", err)
	}
}

func (p *Planes) hardStopAfter() time.Duration {
	return time.Duration(p.o.Config().Dataplane.HardStopAfter)
}
