package render

import (
	"fmt"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/text"
)

// Plan shows the changes of a plan, with their number, and its problems.
func Plan(plan v1.Plan) output.View {
	return output.View{
		Data:   plan,
		Names:  output.Texts(plan.Changes, func(c v1.PlanChange) string { return c.Name }),
		Errors: output.Texts(plan.Problems, Problem),
		Text: func(p *output.Printer) string {
			grid := &output.Grid{Footer: planFooter(plan)}
			for _, c := range plan.Changes {
				what := fmt.Sprintf("%-7s %s", c.Kind, c.Name) // one cell, so that the name directly follows its kind
				grid.AddSparse(Action(c.Action), what, c.Detail, output.Cell{Text: c.Impact, Style: output.Faint})
			}
			return Problems("", plan.Problems) + grid.Text(p)
		},
	}
}

// planFooter counts the changes and the problems. A configuration that can't be read has no plan.
func planFooter(plan v1.Plan) string {
	out := "Plan: no changes"
	switch {
	case len(plan.Changes) > 0:
		out = fmt.Sprintf("Plan: %d add, %d change, %d remove", plan.Add, plan.Change, plan.Remove)
	case len(plan.Problems) > 0:
		out = "Plan: none"
	}
	if n := len(plan.Problems); n > 0 {
		out += "; " + text.Plural(n, "problem")
	}
	return out + "\n"
}
