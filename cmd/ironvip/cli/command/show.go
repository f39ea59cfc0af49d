package command

import (
	"cmp"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// AppliedWord returns the end of a message about a change.
func AppliedWord(applied bool) string {
	if applied {
		return ", applied"
	}
	return ", not waiting"
}

// ShowChange writes the responses of a mutating command in the formats for programs. The
// human-readable message is already on stderr.
func ShowChange[T any](a *App, answers []T, names []string) error {
	return a.Show(output.View{Data: OneOrList(answers), Names: names})
}

// OneOrList returns the document of some objects: a single one alone, several as a list.
func OneOrList[T any](objects []T) any {
	if len(objects) == 1 {
		return objects[0]
	}
	return ItemsOf[T]{objects}
}

// ItemsOf is the form of a list that has no type in the API.
type ItemsOf[T any] struct {
	Items []T `json:"items"`
}

// ShowPlan shows a plan and its warnings. It ends the command with the code for changes or mistakes.
func (a *App) ShowPlan(plan v1.Plan, view output.View) error {
	if err := a.Show(view); err != nil {
		return err
	}
	a.Warn(plan.Warnings)
	return cmp.Or(ExitIf(len(plan.Problems) > 0, ExitError), ExitIf(len(plan.Changes) > 0, ExitChanges))
}

// Warn prints what works and is probably not what was meant.
func (a *App) Warn(problems []v1.Problem) {
	for _, p := range problems {
		a.Say("warning: %s", p.Error())
		if p.Hint != "" {
			a.Say("hint: %s", p.Hint)
		}
	}
}
