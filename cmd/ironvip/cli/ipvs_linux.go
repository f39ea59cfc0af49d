package cli

import "github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"

func ipvsRequirements() []doctor.Requirement { return nil }
