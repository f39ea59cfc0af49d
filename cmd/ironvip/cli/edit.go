package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/input"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// runEditor runs an editor, a command of the shell, for a file on these streams. It waits for its end.
func runEditor(ctx context.Context, o *Options, editor, file string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "editor", file) // editor may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.Stdin, o.Stdout, o.Stderr
	if err := cmd.Run(); err != nil {
		return &failure{code: ExitError, err: fmt.Errorf("editor %s: %w", editor, err), hint: "set VISUAL or EDITOR to an editor that works; nothing was stored"}
	}
	return nil
}

func (a *app) serviceEditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "edit NAME",
		Short: "edit the definition of a service of the API in $EDITOR",
		Long: `Opens the definition of a service, as "service get -o toml" prints it, in $VISUAL, $EDITOR or
vi, and stores it when the editor ends. Nothing is stored if the text has not changed.

If the text has a mistake, or the agent refuses it, the command prints the reasons and asks
whether to edit again; so it does if the service was changed by others meanwhile, and then
the file also has the new definition, as comments. If you give up, the text stays in a file,
which "service apply -f" accepts. Services of other sources are edited in that source.`,
		Example:           "  ironvip service edit web\n  EDITOR=\"code --wait\" ironvip service edit shop/db",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete(onlyFirst(services)),
	}
	dontWait := noWait(cmd.Flags())
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, err := parseKey(args[0])
		if err != nil {
			return err
		}
		return (&edit{a: a, c: c, key: key, write: a.write(*dontWait), answers: bufio.NewScanner(a.Stdin)}).run(ctx)
	})
	return cmd
}

// edit is one run of "service edit".
type edit struct {
	a       *app
	c       *client.Client
	key     vip.ServiceKey
	write   client.Write
	answers *bufio.Scanner
	file    string // "" before it exists, and once it is not needed
	saved   string // what the file has
	edited  bool   // the file differs from what the agent has
}

// editHead begins each file.
const editHead = `# The definition of service %s. Save and close the editor to store it; without a
# change, nothing is stored. Lines that begin with # are ignored.
`

func (e *edit) run(ctx context.Context) error {
	s, err := e.c.Service(ctx, e.key.Namespace, e.key.Name, client.Wait{})
	if err != nil {
		return notFound(err, seeServices)
	}
	if s.Source != rest.Type {
		return &failure{code: ExitConflict, err: fmt.Errorf("service %s is defined by source %s: %s", e.key, s.Source, s.Origin), hint: "edit it there"}
	}
	original, err := definitionTOML(s)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(editHead, e.key) + "\n" + original
	for e.write.IfMatch = s.ETag; ; {
		edited, err := e.open(ctx, text)
		if err != nil {
			return e.giveUp(err)
		}
		if withoutComments(edited) == withoutComments(original) {
			e.remove()
			e.a.printer().Say("service %s not changed", e.key)
			return showChange(e.a, []v1.Service{}, nil)
		}
		e.edited = true
		stored, problems, err := e.store(ctx, edited)
		if err == nil && len(problems) == 0 {
			e.remove()
			e.a.printer().Say("service %s updated (revision %d)%s", e.key, stored.Revision, appliedWord(e.write.Wait > 0))
			return showChange(e.a, []v1.Service{stored}, []string{e.key.String()})
		}
		text = edited
		if client.IsCode(err, v1.CodePreconditionFailed) {
			text, err = e.changedMeanwhile(ctx, edited, err)
		}
		if !refusesText(err) && len(problems) == 0 {
			return e.giveUp(err)
		}
		for _, p := range problems {
			e.a.printer().Label("error", output.Bad, problemLine(p))
		}
		if err != nil {
			e.a.report(err)
		}
		if !e.again() {
			return e.giveUp(nil)
		}
	}
}

// definitionTOML returns what "service get -o toml" prints.
func definitionTOML(s v1.Service) (string, error) {
	return output.TOMLBlocks("service", []v1.ServiceSpec{definition(s)})
}

// withoutComments returns the lines of a text that are neither empty nor comments.
func withoutComments(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") {
			out.WriteString(t + "\n")
		}
	}
	return out.String()
}

// open makes the file have the text, and returns it as the user has saved it. The text begins with
// what the file has: nothing that the user wrote is lost if the disk is full.
func (e *edit) open(ctx context.Context, text string) (string, error) {
	if err := e.extend(strings.TrimPrefix(text, e.saved)); err != nil {
		if !e.edited {
			e.remove()
		}
		return "", &failure{code: ExitError, err: err, hint: "set TMPDIR to a directory that has space and that you may write"}
	}
	e.saved = text
	err := runEditor(ctx, &e.a.Options, cmp.Or(e.a.Getenv("VISUAL"), e.a.Getenv("EDITOR"), "vi"), e.file)
	edited, readErr := os.ReadFile(e.file)
	if errors.Is(readErr, fs.ErrNotExist) {
		readErr = &failure{code: ExitError, err: fmt.Errorf("%s does not exist: the editor removed it", e.file), hint: "edit again, and save the text in this file; nothing was stored"}
		e.file = ""
	} else if readErr == nil {
		e.saved = string(edited)
	}
	if err != nil && !e.edited && string(edited) == text {
		e.remove() // it has nothing of the user's
	}
	if err = errors.Join(err, readErr); err != nil {
		return "", err
	}
	if len(edited) > maxApply {
		err = fmt.Errorf("%s must be at most %d MiB", e.file, maxApply>>20)
	}
	return string(edited), err
}

// extend appends to the file. It creates the file first if there is none.
func (e *edit) extend(more string) error {
	var f *os.File
	var err error
	if e.file == "" {
		f, err = os.CreateTemp("", "ironvip-"+e.key.Name+"-*.toml") // only this user may read it
	} else {
		f, err = os.OpenFile(e.file, os.O_WRONLY|os.O_APPEND, 0)
	}
	if err != nil {
		return err
	}
	e.file = f.Name()
	_, err = f.WriteString(more)
	return errors.Join(err, f.Close())
}

// store sends the edited definition. It returns the mistakes of the text, or an error of the agent.
func (e *edit) store(ctx context.Context, text string) (v1.Service, []vip.Problem, error) {
	services, problems := input.Services(e.file, []byte(text))
	if len(problems) > 0 {
		return v1.Service{}, problems, nil
	}
	wrong := func(message, hint string) (v1.Service, []vip.Problem, error) {
		return v1.Service{}, []vip.Problem{{Code: vip.CodeInvalid, Place: e.file, Message: message, Hint: hint}}, nil
	}
	const others = "create others with ironvip service apply"
	switch {
	case len(services) == 0:
		return wrong("has no service", "write its definition, or run ironvip service delete "+e.key.String())
	case len(services) > 1:
		return wrong(fmt.Sprintf("has %s, not one", output.Plural(len(services), "service")), others)
	}
	s := services[0]
	if name := nameOf(cmp.Or(s.Namespace, vip.DefaultNamespace), s.Name); name != e.key.String() {
		return wrong(fmt.Sprintf("has the service %s, not %s", name, e.key), others)
	}
	stored, err := e.c.PutService(ctx, e.key.Namespace, e.key.Name, s, e.write)
	return stored, nil, err
}

// refusesText reports whether the agent has not stored the definition, and could store another one.
func refusesText(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && (refused.Status == http.StatusUnprocessableEntity || refused.Status == http.StatusBadRequest ||
		refused.Status == http.StatusPreconditionFailed || refused.Status == http.StatusRequestEntityTooLarge)
}

// changedMeanwhile adds the present definition to the text of the user. Storing it again replaces
// that definition.
func (e *edit) changedMeanwhile(ctx context.Context, text string, refusal error) (string, error) {
	s, err := e.c.Service(ctx, e.key.Namespace, e.key.Name, client.Wait{})
	if err != nil { // deleted, or no agent
		return text, err
	}
	now, err := definitionTOML(s)
	if err != nil {
		return text, err
	}
	e.write.IfMatch = s.ETag
	var b bytes.Buffer
	b.WriteString(text + "\n\n# The service was changed meanwhile. The definition above replaces this one:\n")
	for line := range strings.Lines(now) {
		b.WriteString("# " + line)
	}
	return b.String(), &failure{code: ExitConflict, err: refusal, hint: "compare with the new definition, which the file has as comments now; storing again replaces it"}
}

// again asks whether to open the editor again.
func (e *edit) again() bool {
	fmt.Fprint(e.a.Stderr, "Edit again? [Y/n] ")
	if !e.answers.Scan() {
		fmt.Fprintln(e.a.Stderr)
		return false // no terminal
	}
	answer := strings.ToLower(strings.TrimSpace(e.answers.Text()))
	return answer == "" || answer == "y" || answer == "yes"
}

// giveUp ends the command, and says where the text is.
func (e *edit) giveUp(err error) error {
	if err != nil && e.file == "" {
		return err
	}
	code := ExitError
	if err != nil {
		code = e.a.report(err)
	}
	if strings.TrimSpace(e.saved) == "" {
		e.remove() // there is no text
	} else if e.file != "" {
		e.a.printer().Say("your text is in %s: store it with ironvip service apply -f %s", e.file, e.file)
	}
	return exit(code)
}

// remove deletes the file, which is no longer needed.
func (e *edit) remove() {
	_ = os.Remove(e.file)
	e.file = ""
}
