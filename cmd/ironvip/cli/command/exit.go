package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/cmd/satellite"
	"github.com/ironvip/ironvip/vip"
)

// The exit codes. Scripts rely on them, so their meanings never change.
const (
	ExitOK           = satellite.ExitOK
	ExitError        = satellite.ExitFailed
	ExitUsage        = satellite.ExitUsage
	ExitDegraded     = 3 // it works, but not as intended
	ExitNotFound     = 4
	ExitConflict     = 5 // another source or host owns it, or changed it meanwhile
	ExitUnreachable  = 6 // no agent answers
	ExitNotPermitted = 7
	ExitChanges      = 10 // a plan or diff has changes
)

// Exit ends a command with a code and no message, because its output is complete.
type Exit int

func (e Exit) Error() string { return "exit code " + strconv.Itoa(int(e)) }

// ExitIf ends a command with a code and no message if a condition holds.
func ExitIf(is bool, code int) error {
	if is {
		return Exit(code)
	}
	return nil
}

// Failure is an error with an exit code and a hint.
type Failure struct {
	Code int // one of the exit codes
	Err  error
	Hint string // what to do about it, or ""
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// NotFound adds the command's own hint to the error for an object that doesn't exist. It returns
// other errors unchanged.
func NotFound(err error, hint string) error {
	if !client.IsNotFound(err) {
		return err
	}
	return &Failure{Code: ExitNotFound, Err: err, Hint: hint}
}

// Usage returns the failure for an invalid command line.
func Usage(cmd *cobra.Command, format string, args ...any) *Failure {
	return &Failure{Code: ExitUsage, Err: fmt.Errorf(format, args...), Hint: cmd.CommandPath() + " --help"}
}

// Report prints err, unless it is silent, and returns the exit code. It prints each of several
// joined errors; the first one determines the code. An error that wraps several errors and has its
// own text counts as one.
func (a *App) Report(err error) int {
	if err == nil {
		return ExitOK
	}
	if code, silent := errors.AsType[Exit](err); silent {
		return int(code)
	}
	if joined, several := err.(interface{ Unwrap() []error }); several && err.Error() == errors.Join(joined.Unwrap()...).Error() {
		code := ExitOK
		for _, part := range joined.Unwrap() {
			if c := a.Report(part); code == ExitOK {
				code = c
			}
		}
		return code
	}
	r := a.explain(err)
	p := a.Printer
	lines := strings.Split(strings.TrimRight(r.text, "\n"), "\n")
	p.Label("error", output.Bad, lines[0])
	for _, line := range lines[1:] {
		if hint, ok := strings.CutPrefix(line, "hint: "); ok {
			p.Label("hint", output.Faint, hint)
		} else {
			p.Say("  %s", strings.TrimPrefix(line, "  "))
		}
	}
	for _, problem := range r.problems {
		p.Say("  %s", render.Problem(problem))
	}
	if r.hint != "" {
		p.Label("hint", output.Faint, r.hint)
	}
	return r.code
}

// explained is an error in the form for display.
type explained struct {
	code       int
	text, hint string
	problems   []v1.Problem // its parts, each printed with its hint
}

func (a *App) explain(err error) explained {
	r := explained{code: ExitError, text: err.Error()}
	if problem, ok := errors.AsType[vip.Problem](err); ok {
		r.hint = problem.Hint
	}
	if e, ok := errors.AsType[*offline.Error](err); ok {
		r.code, r.hint = exitCodeOfCause[e.Cause], e.Hint
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		r.text, _, _ = strings.Cut(r.text, "\n") // the rest follows as problems
		r.code, r.hint, r.problems = exitCodeOf(e), e.Hint, e.Problems
		if len(r.problems) > 0 { // they are printed before the hint
			r.hint = strings.TrimPrefix(strings.TrimPrefix(r.hint, "see errors"), "; ")
		}
		if len(r.problems) > 0 && strings.HasPrefix(r.text, r.problems[0].Error()) { // the detail is the first problem
			r.hint, r.problems = cmp.Or(r.problems[0].Hint, r.hint), r.problems[1:]
		}
		if a.Verbose && e.RequestID != "" {
			r.text += " (request " + e.RequestID + ")"
		}
	}
	if f, ok := errors.AsType[*Failure](err); ok { // the command's own hint and code take precedence
		r.code, r.hint = f.Code, f.Hint
	}
	if errors.Is(err, context.Canceled) {
		r.text = "interrupted"
	}
	return r
}

var exitCodeOfCause = map[offline.Cause]int{
	offline.CauseOther: ExitError, offline.CauseRunning: ExitConflict, offline.CausePermission: ExitNotPermitted,
}

// exitCodeOf maps an error of the agent or of the connection to an exit code.
func exitCodeOf(e *client.Error) int {
	switch {
	case e.Code == client.CodeUnreachable || e.Code == client.CodeTimeout:
		return ExitUnreachable
	case e.Code == client.CodeNotPermitted || e.Status == http.StatusForbidden || e.Status == http.StatusUnauthorized:
		return ExitNotPermitted
	case e.Code == v1.CodeNotFound:
		return ExitNotFound
	case e.Status == http.StatusConflict || e.Status == http.StatusPreconditionFailed || Conflicts(e.Problems):
		return ExitConflict
	}
	return ExitError
}

// IsRefused reports whether the caller may not make a call. Waiting doesn't change that.
func IsRefused(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && exitCodeOf(e) == ExitNotPermitted
}

// Conflicts reports whether every problem is that another source owns the object or has changed it.
func Conflicts(problems []v1.Problem) bool {
	for _, p := range problems {
		if p.Code != v1.CodeReadOnlySource && p.Code != vip.CodeNameTaken && p.Code != v1.CodePreconditionFailed {
			return false
		}
	}
	return len(problems) > 0
}
