package probe

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/command"
)

// runCommand runs a command. Exit status 0 passes; otherwise the first line of the output is the reason. The command gets
// the target in IRONVIP_ADDRESS and IRONVIP_PORT.
func runCommand(ctx context.Context, j *job) (Outcome, string) {
	t, c := j.t.Target, &j.check
	output, err := command.Run(ctx, strings.Split(c.Command, "\x00"), []string{
		"IRONVIP_ADDRESS=" + t.Addr.Addr().String(),
		"IRONVIP_PORT=" + strconv.Itoa(int(t.Addr.Port())),
	}, nil)
	start, unstarted := errors.AsType[*command.StartError](err)
	switch line := firstLine(output); {
	case err == nil:
		return OK, ""
	case unstarted:
		return judgeOwn("run command", start.Err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return TimedOut, "command killed after " + c.Timeout.String()
	case line == "":
		return Exited, err.Error()
	default:
		return Exited, err.Error() + ": " + line
	}
}

// firstLine returns the first line of a text that is not empty.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
