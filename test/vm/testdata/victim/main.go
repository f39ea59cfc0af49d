// Command victim ends in every way a program in the VM can; the runner's tests on the host use it.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "exit":
		code, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		os.Exit(code)
	case "signal":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hang":
		fmt.Println("hanging")
		time.Sleep(time.Hour)
	case "crash": // the kernel
		fmt.Println("crashing")
		if err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0); err != nil {
			panic(err)
		}
	case "flood": // bytes of every value, not a multiple of any block
		n, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		b := make([]byte, 0, n)
		for i := range n {
			b = append(b, byte(i%251))
		}
		os.Stdout.Write(b)
	case "cat":
		for _, name := range os.Args[2:] {
			b, err := os.ReadFile(name)
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Stdout.Write(b)
		}
	case "run":
		out, err := exec.Command(os.Args[2], os.Args[3:]...).CombinedOutput()
		os.Stdout.Write(bytes.TrimSpace(out))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "modules":
		b, err := os.ReadFile("/proc/modules")
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(b)
	}
}
