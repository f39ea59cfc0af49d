// Package render writes what several groups of commands show of the API's objects: problems, levels, plans, numbers.
//
// Its input is the API's types. Its output is texts, cells and views of package output. It prints nothing, asks no agent,
// and decides nothing.
package render

import (
	"fmt"
	"regexp"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// inRequest matches the index of a service in the API's field names. It is removed because the
// problem has the service's name.
var inRequest = regexp.MustCompile(`^services\[\d+\]\.?`)

// Problem returns one problem with its hint on the same line.
func Problem(p v1.Problem) string {
	if p.Service != "" {
		p.Field = inRequest.ReplaceAllString(p.Field, "")
	}
	return output.Join("     hint: ", p.Error(), p.Hint)
}

// WithoutService returns a problem without its service, for a list of problems of a service that is named above.
func WithoutService(p v1.Problem) v1.Problem {
	p.Field, p.Service = inRequest.ReplaceAllString(p.Field, ""), ""
	return p
}

// Problems returns problems, one per line.
func Problems(indent string, problems []v1.Problem) string {
	return strings.Join(output.Texts(problems, func(p v1.Problem) string { return indent + output.Clean(Problem(p)) + "\n" }), "")
}

// FurtherProblems returns the problems of a check that its message doesn't have.
func FurtherProblems(c v1.Check) []v1.Problem {
	return c.Problems[min(max(c.InMessage, 0), len(c.Problems)):]
}

// Level returns the word for a level, padded to the widest.
func Level(level string) output.Cell {
	if c, known := levels[level]; known {
		return c
	}
	return output.Cell{Text: level}
}

var levels = map[string]output.Cell{v1.LevelOK: {Text: "OK  ", Style: output.Good}, v1.LevelWarn: {Text: "WARN", Style: output.Caution}, v1.LevelFail: {Text: "FAIL", Style: output.Bad}}

// LevelWord returns the painted word for a level.
func LevelWord(p *output.Printer, level string) string {
	c := Level(level)
	return p.Paint(c.Text, c.Style)
}

// Action returns the sign of a change, as in a plan.
func Action(action string) output.Cell {
	if c, known := signs[action]; known {
		return c
	}
	return output.Cell{Text: action}
}

var signs = map[string]output.Cell{v1.ActionAdd: {Text: "+", Style: output.Good}, v1.ActionRemove: {Text: "-", Style: output.Bad},
	v1.ActionChange: {Text: "~", Style: output.Caution}, v1.ActionRepair: {Text: "~", Style: output.Caution}}

// CommaList joins addresses or ranges.
func CommaList[T fmt.Stringer](of []T) string { return strings.Join(output.Texts(of, T.String), ",") }

// Count returns a number with separated thousands, or "many" from the upper limit of the API's counts.
func Count(n uint64) string {
	const most = 1<<53 - 1
	if n >= most {
		return "many"
	}
	return output.Count(int64(n))
}
