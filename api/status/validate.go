package status

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
)

// Validation is the result of reading a configuration from disk.
type Validation struct {
	Config   *configs.Config // nil with an error in ironvip.toml
	Missing  bool            // the path doesn't exist
	Problems []vip.Problem   // sorted by place
	Warnings []vip.Problem   // what has no effect; sorted by place
	Summary  string          // "1 pool, 1 source, 4 services"; empty without a Config
}

// ReadServices is the hint for services that no source reads.
const ReadServices = `add a [[source]] with type = "static" and path = "` + configs.ServicesDir + `"`

// Validate reads the configuration at path, the services of its sources that have files, and the
// files that it names. It reports what is wrong with them, and what Proposal.Plan finds on a host
// without leases. It needs no agent. Mode is the dataplane in use, as in Proposal.
//
// With an error in ironvip.toml, its sources and pools are not certain. Validate then reads
// services.d beside it and the files in the readable part, so that one run shows as many problems as
// possible, and plans nothing.
func Validate(ctx context.Context, path, mode string) Validation {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) { // the agent treats a missing file as empty
		return Validation{Missing: true, Problems: []vip.Problem{{Code: vip.CodeInvalid, Place: path, Message: "no such file or directory",
			Hint: "create it or use another path; a directory without " + configs.ConfigName + " is a valid configuration"}}}
	}
	config, problems := configs.Load(path)
	v := Validation{Config: config, Problems: problems}
	from, names := config, config
	if from == nil {
		names = configs.Draft(path)
		file := path
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			file = filepath.Join(path, configs.ConfigName)
		}
		if from, _ = configs.Parse(file, nil); from == nil {
			return v
		}
	}
	services, more := from.Services()
	v.Problems = append(v.Problems, more...)
	if names != nil {
		v.Problems = append(v.Problems, names.CheckFiles()...)
	}
	if config == nil {
		v.Warnings = ineffective(services)
	} else {
		v.plan(ctx, services, mode)
	}
	tomlfile.SortProblems(v.Problems)
	tomlfile.SortProblems(v.Warnings)
	return v
}

// plan adds what a plan of a valid ironvip.toml finds.
func (v *Validation) plan(ctx context.Context, services []vip.Service, mode string) {
	v.Summary = strings.Join([]string{text.Plural(len(v.Config.Pools), "pool"), text.Plural(len(v.Config.Sources), "source"),
		text.Plural(len(services), "service")}, ", ")
	plan, err := (&Proposal{Config: v.Config, Services: services, Mode: mode}).Plan(ctx)
	if err != nil {
		v.Problems = append(v.Problems, vip.Problem{Code: vip.CodeInvalid, Place: v.Config.Path, Message: err.Error()})
	}
	v.Problems, v.Warnings = append(v.Problems, plan.Problems...), plan.Warnings
	if dir := v.Config.UnreadServices(); dir != "" {
		v.Warnings = append(v.Warnings, vip.Problem{Code: vip.CodeInvalid, Place: dir, Message: "ignored: no static source configured", Hint: ReadServices})
	}
}
